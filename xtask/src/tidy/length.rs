//! Lengths of files and functions. Those of Rust functions are clippy's business (`too_many_lines`).

use super::Finding;

const LONGEST_FILE: usize = 500;
/// In lines, the first and the last included. In C a function is a stage of the kernel program.
const LONGEST_PYTHON_FUNCTION: usize = 70;
const LONGEST_C_FUNCTION: usize = 60;

/// A function: its first line, from 1, and how many lines it has.
type Span = (usize, usize);

/// Checks a source file; other files may be as long as they need.
pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let longest = match path.rsplit('.').next() {
        Some("rs") => usize::MAX,
        Some("c" | "h") => LONGEST_C_FUNCTION,
        Some("py") => LONGEST_PYTHON_FUNCTION,
        _ => return findings,
    };
    let lines = lines_without_tests(path, content);
    if lines > LONGEST_FILE {
        findings.push(Finding::new(
            path,
            0,
            format!("{lines} lines besides tests, {LONGEST_FILE} are allowed"),
        ));
    }
    let functions = if path.ends_with(".py") { python_functions(content) } else { c_functions(content) };
    for (first, lines) in functions {
        if lines > longest {
            findings.push(Finding::new(
                path,
                first,
                format!("a function of {lines} lines, {longest} are allowed"),
            ));
        }
    }
    findings
}

fn lines_without_tests(path: &str, content: &str) -> usize {
    if path.contains("tests/") || path.ends_with("/tests.rs") {
        return 0;
    }
    // By custom the module of unit tests is the last thing in a file.
    let tests =
        ["mod", "pub mod"].iter().find_map(|word| content.find(&format!("\n#[cfg(test)]\n{word} tests {{")));
    tests.map_or(content, |at| &content[..=at]).lines().count()
}

/// Functions of C in the usual layout: what begins at the margin ends with `}` at the margin.
fn c_functions(content: &str) -> Vec<Span> {
    let mut functions = Vec::new();
    let mut first = None;
    for (number, line) in (1..).zip(content.lines()) {
        match first {
            Some(begin) if line.starts_with('}') => {
                functions.push((begin, number - begin + 1));
                first = None;
            }
            None if is_c_head(line) => first = Some(number),
            // A prototype or the use of a macro.
            Some(begin) if begin == number - 1 && line.is_empty() => first = None,
            _ => {}
        }
    }
    functions
}

fn is_c_head(line: &str) -> bool {
    let begins_a_word = line.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    begins_a_word && line.contains('(') && !line.ends_with(';')
}

/// Functions of Python: `def` and all that is indented deeper, to its last line with something on it.
fn python_functions(content: &str) -> Vec<Span> {
    let lines: Vec<&str> = content.lines().collect();
    let is_def =
        |line: &str| line.trim_start().starts_with("def ") || line.trim_start().starts_with("async def ");
    let heads = lines.iter().enumerate().filter(|(_, line)| is_def(line));
    heads.map(|(at, head)| (at + 1, 1 + body_lines(indent(head), &lines[at + 1..]))).collect()
}

fn body_lines(outer: usize, below: &[&str]) -> usize {
    // The `)` of an argument list that is spread over lines stands as deep as its `def`.
    let inside =
        |line: &&str| line.trim().is_empty() || indent(line) > outer || line.trim_start().starts_with(')');
    let body = below.iter().take_while(|line| inside(line)).count();
    below[..body].iter().rposition(|line| !line.trim().is_empty()).map_or(0, |last| last + 1)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn c_function(lines: usize) -> String {
        format!("static int add(int a,\n{}}}\n\nint next;\n", "\tx++;\n".repeat(lines - 2))
    }

    fn python_function(lines: usize) -> String {
        format!("class A:\n    def add(self):\n{}\n    x = 1\n", "        x += 1\n".repeat(lines - 1))
    }

    #[test]
    fn canary_a_long_file_is_flagged_but_for_its_tests() {
        let body = "const A: u8 = 1;\n".repeat(LONGEST_FILE);
        let tests = "\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(check("src/a.rs", &(body.clone() + "const B: u8 = 1;\n")).len(), 1);
        assert_eq!(check("tests/a.rs", &(body.clone() + "const B: u8 = 1;\n")), []);
        assert_eq!(check("src/a.rs", &(body[17..].to_owned() + tests)), []);
        assert_eq!(check("docs/a.md", &body.repeat(2)), []);
    }

    #[test]
    fn canary_a_long_function_is_flagged() {
        assert_eq!(c_functions(&c_function(30)), [(1, 30)]);
        assert_eq!(python_functions(&python_function(30)), [(2, 30)]);
        assert_eq!(check("a.h", &c_function(LONGEST_C_FUNCTION)), []);
        assert_eq!(check("a.h", &c_function(LONGEST_C_FUNCTION + 1)).len(), 1);
        assert_eq!(check("a.py", &python_function(LONGEST_PYTHON_FUNCTION)), []);
        assert_eq!(check("a.py", &python_function(LONGEST_PYTHON_FUNCTION + 1)).len(), 1);
    }

    #[test]
    fn an_argument_list_over_several_lines_belongs_to_its_function() {
        let content = "def add(\n    a,\n):\n    return a\n\n\nx = 1\n";
        assert_eq!(python_functions(content), [(1, 4)]);
    }
}
