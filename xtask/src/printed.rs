//! Pages that hold what a command printed, between two marks.

use crate::repository::Repository;

const BEGIN: &str = "<!-- begin: printed -->";
const END: &str = "<!-- end: printed -->";

/// Puts `printed` between the marks of `page`, a path relative to the root.
pub(crate) fn put(repository: &Repository, page: &str, printed: &str) -> Result<(), String> {
    let text = replaced(&repository.read(page)?, printed)
        .ok_or_else(|| format!("{page} has no lines `{BEGIN}` and `{END}`"))?;
    std::fs::write(repository.root().join(page), text).map_err(|error| format!("{page}: {error}"))
}

/// The page with `printed` between its marks, if it has them.
fn replaced(page: &str, printed: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!(
        "{before}{BEGIN}\n\n{}\n\n{END}{after}",
        printed.trim()
    ))
}

#[cfg(test)]
mod tests {
    use super::replaced;

    #[test]
    fn what_was_printed_takes_the_place_of_what_was_there() {
        let page = "# Page\n<!-- begin: printed -->\nold\n<!-- end: printed -->\nmore\n";
        let expected =
            "# Page\n<!-- begin: printed -->\n\n| new |\n\n<!-- end: printed -->\nmore\n";
        assert_eq!(replaced(page, "| new |\n").unwrap(), expected);
        assert_eq!(replaced(expected, "| new |\n").unwrap(), expected);
        assert!(replaced("# Page\n", "| new |\n").is_none());
    }
}
