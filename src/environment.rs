//! What whoever starts a node puts into its environment: settings that can't be made from within, because the allocator
//! reads them before `main`. The image, `prefixd dev` and the benches start nodes; docs/OPERATIONS.md, "Memory", says
//! what each setting does. Never what the operator has set.

use std::ffi::OsStr;

/// Names and values.
pub const NODE_ENVIRONMENT: [(&str, &str); 1] = [
    // Milliseconds until freed memory goes back to the system. By default a second, within which a snapshot frees what
    // it takes several times.
    ("MIMALLOC_PURGE_DELAY", "10"),
];

/// Those of [`NODE_ENVIRONMENT`] that `is_set` doesn't know, for a child that inherits the rest.
pub fn missing(is_set: impl Fn(&OsStr) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    NODE_ENVIRONMENT.into_iter().filter(move |(name, _)| !is_set(OsStr::new(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn what_is_set_stays() {
        assert_eq!(missing(|_| false).count(), NODE_ENVIRONMENT.len());
        assert_eq!(missing(|name| name == "MIMALLOC_PURGE_DELAY").count(), NODE_ENVIRONMENT.len() - 1);
    }

    #[test]
    fn the_image_and_the_page_for_operators_say_the_same() {
        let text = |path: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
        let (image, page) = (text("deploy/Dockerfile"), text("docs/OPERATIONS.md"));
        for (name, value) in NODE_ENVIRONMENT {
            assert!(image.contains(&format!("\nENV {name}={value}\n")), "the image doesn't set {name}");
            assert!(page.contains(&format!("`{name}={value}`")), "docs/OPERATIONS.md doesn't tell of {name}");
        }
        let set = image.lines().filter(|line| line.starts_with("ENV MIMALLOC_")).count();
        assert_eq!(set, NODE_ENVIRONMENT.len(), "the image sets what nobody else does");
    }
}
