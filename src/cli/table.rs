//! Columns for people: the first flush left, the others flush right, two spaces between.

/// Renders rows, the first one a header; each line ends in a newline.
pub fn render<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let rows: Vec<[String; COLUMNS]> = rows.iter().map(|row| row.each_ref().map(|cell| visible(cell))).collect();
    let mut widths = [0; COLUMNS];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in &rows {
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

/// The text with its control characters spelt out: ids come from whoever reports, and must neither break a line nor steer
/// a terminal.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::{render, visible};

    #[test]
    fn no_id_breaks_a_line_or_steers_a_terminal() {
        let rows = [["r\n1", "x"], ["é\u{1b}[2J", "y"]].map(|row| row.map(str::to_owned));
        assert_eq!(render(&rows), "r\\n1        x\né\\u{1b}[2J  y\n");
        assert_eq!(visible("plain é"), "plain é");
    }

    #[test]
    fn columns_line_up() {
        let rows = [["a", "bb"], ["ccc", "d"]].map(|row| row.map(str::to_owned));
        assert_eq!(render(&rows), "a    bb\nccc   d\n");
        assert_eq!(render::<2>(&[]), "");
    }
}
