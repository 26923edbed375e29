//! Finds the string literals of Rust text. It knows just enough of the language not to be misled by comments,
//! characters and raw strings.

/// A string literal.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Literal<'a> {
    /// The line on which it opens, from 1.
    pub(super) line: usize,
    /// What stands between the quotes, escapes as written.
    pub(super) text: &'a str,
}

/// Returns the string literals of `text` in order.
pub(super) fn string_literals(text: &str) -> Vec<Literal<'_>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            at += rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(length) = ["'\"'", "'\\\"'"].iter().find(|quote| rest.starts_with(**quote)).map(|q| q.len())
        {
            at += length;
        } else if let Some((open, close)) = opening(rest) {
            let start = at + open;
            let length = close_of(&text[start..], &close);
            found.push(Literal { line: text[..at].matches('\n').count() + 1, text: &text[start..start + length] });
            at = start + length + close.len();
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    found
}

/// Returns the length of the opening quote at the start of `rest` and the closing quote that belongs to it.
fn opening(rest: &str) -> Option<(usize, String)> {
    if rest.starts_with('"') {
        return Some((1, "\"".to_owned()));
    }
    let hashes = rest.strip_prefix('r')?.chars().take_while(|letter| *letter == '#').count();
    let is_raw = rest[1 + hashes..].starts_with('"');
    is_raw.then(|| (hashes + 2, format!("\"{}", "#".repeat(hashes))))
}

/// Returns where the literal at the start of `rest` ends; only plain strings have escapes.
fn close_of(rest: &str, close: &str) -> usize {
    if close.len() > 1 {
        return rest.find(close).unwrap_or(rest.len());
    }
    let mut is_escaped = false;
    for (at, letter) in rest.char_indices() {
        match letter {
            '"' if !is_escaped => return at,
            letter => is_escaped = letter == '\\' && !is_escaped,
        }
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        string_literals(text).into_iter().map(|literal| literal.text).collect()
    }

    #[test]
    fn plain_and_raw_strings_are_found() {
        assert_eq!(texts(r##"f("a \" b", r#"c "d""#, "é")"##), [r#"a \" b"#, r#"c "d""#, "é"]);
    }

    #[test]
    fn comments_characters_and_lifetimes_open_no_string() {
        assert_eq!(texts("// \"no\"\n/* \"no\" */ let x: &'a str = '\"'; y(\"yes\")"), ["yes"]);
    }

    #[test]
    fn a_literal_knows_its_line() {
        assert_eq!(string_literals("\n\n\"x\ny\"\n"), [Literal { line: 3, text: "x\ny" }]);
    }
}
