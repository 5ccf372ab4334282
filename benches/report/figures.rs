//! What was measured, round by round.

use std::error::Error;

pub type Fault = Box<dyn Error + Send + Sync>;

/// One figure in all its rounds.
pub struct Figure {
    pub part: String,
    pub name: String,
    pub unit: String,
    values: Vec<f64>,
}

/// All figures in the order in which they first came.
#[derive(Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    /// Takes one value of one round.
    pub fn add(&mut self, part: &str, name: &str, value: f64, unit: &str) {
        println!("{part}: {name:<52} | {:>12} | {unit}", shown(value));
        let is_it = |figure: &&mut Figure| figure.part == part && figure.name == name && figure.unit == unit;
        match self.0.iter_mut().find(is_it) {
            Some(figure) => figure.values.push(value),
            None => self.0.push(Figure {
                part: part.to_owned(),
                name: name.to_owned(),
                unit: unit.to_owned(),
                values: vec![value],
            }),
        }
    }

    pub fn of(&self, part: &str) -> impl Iterator<Item = &Figure> {
        self.0.iter().filter(move |figure| figure.part == part)
    }

    /// The parts that were measured, in order.
    pub fn parts(&self) -> Vec<&str> {
        let mut parts: Vec<&str> = Vec::new();
        for figure in &self.0 {
            if !parts.contains(&figure.part.as_str()) {
                parts.push(&figure.part);
            }
        }
        parts
    }
}

impl Figure {
    /// Lowest, median and highest of the rounds.
    pub fn spread(&self) -> [String; 3] {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len() - 1;
        let median = (sorted[last / 2] + sorted[last.div_ceil(2)]) / 2.0;
        [sorted[0], median, sorted[last]].map(shown)
    }
}

/// Four digits that count, or the whole number.
fn shown(value: f64) -> String {
    match value.abs() {
        small if small < 10.0 => format!("{value:.3}"),
        middle if middle < 1_000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
