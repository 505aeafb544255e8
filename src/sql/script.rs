//! Texts of several SQL statements: where one ends and the next begins.
//!
//! A semicolon ends a statement unless it stands in quotes or in a comment. Each statement knows its place, so that an error
//! can name the line of the whole text.

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement<'a> {
    /// The statement without its semicolon and without blanks around it.
    pub text: &'a str,
    /// Lines before it.
    line: usize,
    /// Characters before it in its first line.
    column: usize,
}

impl Statement<'_> {
    /// The statement behind as many lines and blanks as stand before it, so that places in it are places in the text.
    pub fn placed(&self) -> String {
        let mut placed = "\n".repeat(self.line);
        placed.push_str(&" ".repeat(self.column));
        placed.push_str(self.text);
        placed
    }
}

/// A text cut into statements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script<'a> {
    /// Every statement in order; what holds only blanks and comments is none.
    pub statements: Vec<Statement<'a>>,
    /// Whether the last one ended in a semicolon, or nothing followed the last semicolon.
    pub is_complete: bool,
}

/// Where the reader is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    Code,
    /// Within quotes of this kind; a doubled quote closes and opens again.
    Quotes(u8),
    LineComment,
    /// Within `/* */`, so many deep.
    BlockComment(u32),
}

/// Cuts a text at the semicolons that end statements.
pub fn script(text: &str) -> Script<'_> {
    let bytes = text.as_bytes();
    let mut found = Script { statements: Vec::new(), is_complete: true };
    let (mut start, mut at, mut inside, mut has_code) = (0, 0, Inside::Code, false);
    while at < bytes.len() {
        let pair = (bytes[at], bytes.get(at + 1).copied());
        let width = match (inside, pair) {
            (Inside::Code, (b'-', Some(b'-'))) => {
                inside = Inside::LineComment;
                2
            }
            (Inside::Code, (b'/', Some(b'*'))) => {
                inside = Inside::BlockComment(1);
                2
            }
            (Inside::Code, (b';', _)) => {
                found.statements.extend(has_code.then(|| statement(text, start, at)));
                (start, has_code) = (at + 1, false);
                1
            }
            (Inside::Code, (byte, _)) => {
                if matches!(byte, b'\'' | b'"') {
                    inside = Inside::Quotes(byte);
                }
                has_code |= !byte.is_ascii_whitespace();
                1
            }
            (Inside::Quotes(quote), (byte, _)) => {
                if byte == quote {
                    inside = Inside::Code;
                }
                1
            }
            (Inside::LineComment, (byte, _)) => {
                if byte == b'\n' {
                    inside = Inside::Code;
                }
                1
            }
            (Inside::BlockComment(depth), (b'*', Some(b'/'))) => {
                inside = if depth > 1 { Inside::BlockComment(depth - 1) } else { Inside::Code };
                2
            }
            (Inside::BlockComment(depth), (b'/', Some(b'*'))) => {
                inside = Inside::BlockComment(depth + 1);
                2
            }
            (Inside::BlockComment(_), _) => 1,
        };
        at += width;
    }
    let is_open = matches!(inside, Inside::Quotes(_) | Inside::BlockComment(_));
    found.is_complete = !has_code && !is_open;
    found.statements.extend(has_code.then(|| statement(text, start, bytes.len())));
    found
}

fn statement(text: &str, start: usize, end: usize) -> Statement<'_> {
    let raw = text.get(start..end).unwrap_or_default();
    let begin = start + raw.len() - raw.trim_start().len();
    let before = text.get(..begin).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    Statement {
        text: raw.trim(),
        line: before.matches('\n').count(),
        column: before.get(line_start..).map_or(0, |line| line.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        script(text).statements.into_iter().map(|statement| statement.text).collect()
    }

    #[test]
    fn semicolons_end_statements_but_not_in_quotes_or_comments() {
        assert_eq!(texts("SELECT 1; SELECT 2 ;"), ["SELECT 1", "SELECT 2"]);
        assert_eq!(texts("SELECT ';', \";\" -- a;b\n, 2; SELECT 3"), ["SELECT ';', \";\" -- a;b\n, 2", "SELECT 3"]);
        assert_eq!(texts("SELECT 'it''s; so'/* ; /* ; */ ; */;x"), ["SELECT 'it''s; so'/* ; /* ; */ ; */", "x"]);
        assert_eq!(texts(" ;; -- nothing\n ; /* or */"), [""; 0]);
        assert_eq!(texts("-- a header\nSELECT 1"), ["-- a header\nSELECT 1"]);
    }

    #[test]
    fn a_text_is_complete_after_its_last_semicolon() {
        for complete in ["", "SELECT 1;", "SELECT 1; -- done", "  \n"] {
            assert!(script(complete).is_complete, "{complete:?}");
        }
        for open in ["SELECT 1", "SELECT 1; SELECT", "SELECT ';", "/* ;", "SELECT \"a;\""] {
            assert!(!script(open).is_complete, "{open:?}");
        }
    }

    #[test]
    fn a_statement_keeps_its_place() {
        let text = "SELECT 1;\n\n  SELECT 2; SELECT 'ä'; SELECT\n 4";
        let found = script(text);
        let lines: Vec<&str> = text.lines().collect();
        for statement in &found.statements {
            let placed = statement.placed();
            let (at, first) =
                placed.lines().enumerate().find(|(_, line)| !line.trim().is_empty()).expect("it is not blank");
            let column = first.chars().take_while(|c| *c == ' ').count();
            let here: String = lines[at].chars().skip(column).collect();
            assert!(here.starts_with(statement.text.lines().next().unwrap()), "{statement:?}");
        }
        assert_eq!(found.statements.len(), 4);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_cut_without_loss_of_code(text in "[a';\"\\-/* \n]{0,40}") {
            let found = script(&text);
            let code: usize = found.statements.iter().map(|statement| statement.text.len()).sum();
            assert!(code <= text.len());
            for statement in &found.statements {
                assert!(!statement.text.is_empty() && text.contains(statement.text));
            }
        }
    }
}
