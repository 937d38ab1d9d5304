//! Rules about single lines.

use super::Finding;

/// What a file may not contain, in pieces so that this file passes its own check; and why.
const FORBIDDEN: &[([&str; 2], &str)] = &[
    (["TO", "DO"], "unfinished work: do it, or file an issue"),
    (["FIX", "ME"], "unfinished work: do it, or file an issue"),
    (["dbg", "!("], "left over from debugging"),
    (["todo", "!("], "a stub"),
    (["unimplemented", "!("], "a stub"),
    (["#[ign", "ore"], "a test that does not run: skip it at run time, loudly"),
    (["System", "Time"], "a clock that jumps: use Instant, so that setting the clock changes no wait"),
    (["/wo", "rk/"], "the path of one machine"),
    (["/ro", "ot/"], "the path of one machine"),
];

/// Checks each line of a text file.
pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in (1..).zip(content.lines()) {
        if line.ends_with([' ', '\t', '\r']) {
            findings.push(Finding::new(path, number, "white space at the end of the line"));
        }
        for (pieces, problem) in FORBIDDEN {
            let word = pieces.concat();
            if line.contains(&word) {
                findings.push(Finding::new(path, number, format!("`{word}`: {problem}")));
            }
        }
    }
    if !content.is_empty() && !content.ends_with('\n') {
        findings.push(Finding::new(path, content.lines().count(), "no newline at the end of the file"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary_every_forbidden_word_is_flagged_at_its_line() {
        for (pieces, problem) in FORBIDDEN {
            let sample = format!("fine\n  {} and more\n", pieces.concat());
            let findings = check("sample.rs", &sample);
            assert_eq!(findings.len(), 1, "{pieces:?}: {findings:?}");
            assert!(findings[0].line == 2 && findings[0].problem.contains(problem));
        }
    }

    #[test]
    fn canary_white_space_and_a_missing_newline_are_flagged() {
        assert_eq!(check("sample.rs", "let x = 1; \n").len(), 1);
        assert_eq!(check("sample.rs", "let x = 1;").len(), 1);
    }

    #[test]
    fn clean_text_passes() {
        assert_eq!(check("sample.rs", "let work = root;\n"), []);
    }
}
