//! What a node's /metrics page says.

use std::error::Error;

/// The sum of a metric's series on a page.
pub fn sum(page: &str, name: &str) -> Result<f64, Box<dyn Error + Send + Sync>> {
    let text = ureq::get(page).call()?.body_mut().read_to_string()?;
    let series = text.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
    Ok(series.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}
