//! Every promise of docs/SPECIFICATION.md names tests that are there: `| P-12 | what | path/of/file.rs::test_name |`.

use std::fs;
use std::path::Path;

use super::Finding;

const SPECIFICATION: &str = "docs/SPECIFICATION.md";

/// Checks the specification of a tree.
pub fn check(root: &Path) -> Vec<Finding> {
    let Ok(content) = fs::read_to_string(root.join(SPECIFICATION)) else {
        return vec![Finding::new(SPECIFICATION, 0, "there is no specification")];
    };
    let rows: Vec<(usize, &str)> =
        (1..).zip(content.lines()).filter(|(_, line)| line.starts_with("| P-")).collect();
    if rows.is_empty() {
        return vec![Finding::new(SPECIFICATION, 0, "it has no promise, a row that begins with `| P-`")];
    }
    rows.into_iter().flat_map(|(line, row)| check_row(root, line, row)).collect()
}

fn check_row(root: &Path, line: usize, row: &str) -> Vec<Finding> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [_, _, tests] = cells.as_slice() else {
        return vec![Finding::new(SPECIFICATION, line, "a promise has three cells: number, promise, tests")];
    };
    let tests = tests.split(',').map(|test| test.trim().trim_matches('`'));
    let problems = tests.filter_map(|test| problem_of(root, test));
    problems.map(|problem| Finding::new(SPECIFICATION, line, problem)).collect()
}

fn problem_of(root: &Path, test: &str) -> Option<String> {
    let Some((path, name)) = test.rsplit_once("::") else {
        return Some(format!("`{test}` is not a path and a test, such as tests/a.rs::sums_are_exact"));
    };
    let Ok(content) = fs::read_to_string(root.join(path)) else {
        return Some(format!("`{test}`: there is no file {path}"));
    };
    let is_there = ["fn", "def"].iter().any(|keyword| content.contains(&format!("{keyword} {name}(")));
    (!is_there).then(|| format!("`{test}`: {path} has no test {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(specification: &str) -> Vec<Finding> {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("docs")).expect("makes");
        fs::write(folder.path().join(SPECIFICATION), specification).expect("writes");
        fs::write(folder.path().join("a.rs"), "fn sums_are_exact() {}\n").expect("writes");
        check(folder.path())
    }

    #[test]
    fn a_promise_with_its_tests_passes() {
        assert_eq!(findings_of("| P-01 | exact | `a.rs::sums_are_exact` |\n"), []);
        assert_eq!(findings_of("| P-01 | exact | a.rs::sums_are_exact, a.rs::sums_are_exact |\n"), []);
    }

    #[test]
    fn canary_a_promise_without_its_test_is_flagged() {
        for row in [
            "| P-01 | exact | a.rs::sums_are |",
            "| P-01 | exact | b.rs::sums_are_exact |",
            "| P-01 | exact | by hand |",
            "| P-01 | exact |  |",
            "| P-01 | exact |",
        ] {
            assert_eq!(findings_of(row).len(), 1, "{row}");
        }
        assert_eq!(findings_of("no promise\n").len(), 1);
        assert_eq!(check(Path::new("/nowhere")).len(), 1);
    }
}
