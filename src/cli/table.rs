//! Columns for people: the first flush left, the others flush right, two spaces between.

/// Renders rows, the first one a header; each line ends in a newline.
pub fn render<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .enumerate()
            .map(|(i, (cell, width))| if i == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") })
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn columns_line_up() {
        let rows = [["a", "bb"], ["ccc", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(render(&rows), "a    bb\nccc   d\n");
        assert_eq!(render::<2>(&[]), "");
    }
}
