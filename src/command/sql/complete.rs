//! What could follow in a statement that is being typed: tables after FROM, columns of the tables that it names, functions
//! and keywords.

use super::editor::Completed;

/// Keywords that are worth completing, as they are usually written.
const KEYWORDS: [&str; 44] = [
    "AND",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "CROSS",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "FILTER",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "IN",
    "INNER",
    "INTERSECT",
    "IS",
    "JOIN",
    "LEFT",
    "LIKE",
    "LIMIT",
    "NOT",
    "NULL",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OVER",
    "PARTITION",
    "SELECT",
    "SHOW",
    "THEN",
    "UNION",
    "USING",
    "WHERE",
    "WITH",
];

/// The names that a session knows.
pub(super) struct Words {
    /// Tables and views with their columns.
    pub(super) tables: Vec<(String, Vec<String>)>,
    /// Functions, without parentheses.
    pub(super) functions: Vec<String>,
    /// What begins with a backslash.
    pub(super) commands: Vec<&'static str>,
}

/// What could stand at the end of `before`; `earlier` are the lines of the statement above it.
pub(super) fn complete(words: &Words, earlier: &str, before: &str) -> Completed {
    let start = before.rfind(|char: char| !is_word(char)).map_or(0, |at| {
        let width = before[at..].chars().next().map_or(1, char::len_utf8);
        at + width
    });
    let word = &before[start..];
    if let Some(command) = before.strip_prefix('\\') {
        return of_command(words, command, before, start);
    }
    let text = format!("{earlier}\n{before}");
    if let Some((owner, column)) = word.rsplit_once('.') {
        let columns = columns_of(words, &text, owner).into_iter().filter(|name| begins(name, column));
        return (start + owner.len() + 1, sorted(columns.cloned().collect()));
    }
    let tables = || words.tables.iter().map(|(name, _)| name).filter(|name| begins(name, word));
    let previous = before[..start].split_whitespace().next_back().or_else(|| earlier.split_whitespace().next_back());
    let wants_table = previous
        .is_some_and(|previous| ["FROM", "JOIN", "DESCRIBE"].iter().any(|key| key.eq_ignore_ascii_case(previous)));
    if wants_table {
        return (start, sorted(tables().cloned().collect()));
    }
    if word.is_empty() {
        return (start, Vec::new());
    }
    let named: Vec<&(String, Vec<String>)> = words.tables.iter().filter(|(name, _)| mentions(&text, name)).collect();
    let of_named = named.iter().flat_map(|(_, columns)| columns);
    let of_all = words.tables.iter().flat_map(|(_, columns)| columns);
    let columns: Vec<&String> = if named.is_empty() { of_all.collect() } else { of_named.collect() };
    let mut found: Vec<String> = columns.into_iter().filter(|name| begins(name, word)).cloned().collect();
    found.extend(tables().cloned());
    found.extend(words.functions.iter().filter(|name| begins(name, word)).map(|name| format!("{name}(")));
    // A keyword follows the case of what was typed.
    let is_lower = word.chars().all(char::is_lowercase);
    let keyword = |key: &&str| if is_lower { key.to_lowercase() } else { (**key).to_owned() };
    found.extend(KEYWORDS.iter().filter(|key| begins(key, word)).map(keyword));
    (start, sorted(found))
}

/// After a backslash: the commands, and after `\d` the tables.
fn of_command(words: &Words, command: &str, before: &str, start: usize) -> Completed {
    match command.split_once(' ') {
        None => {
            let fits = words.commands.iter().filter(|known| known.starts_with(before));
            (0, fits.map(|known| (*known).to_owned()).collect())
        }
        Some(("d", _)) => {
            let word = &before[start..];
            let tables = words.tables.iter().map(|(name, _)| name).filter(|name| begins(name, word));
            (start, sorted(tables.cloned().collect()))
        }
        Some(_) => (start, Vec::new()),
    }
}

fn is_word(char: char) -> bool {
    char.is_alphanumeric() || matches!(char, '_' | '.')
}

fn begins(name: &str, word: &str) -> bool {
    name.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word))
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names.dedup();
    names
}

/// Words of a statement, without what is between them.
fn tokens(text: &str) -> impl Iterator<Item = &str> {
    text.split(|char: char| !is_word(char)).filter(|token| !token.is_empty())
}

fn mentions(text: &str, name: &str) -> bool {
    tokens(text).any(|token| token.eq_ignore_ascii_case(name))
}

/// The columns of a table by its name, or by the name that the statement gives it.
fn columns_of<'a>(words: &'a Words, text: &str, owner: &str) -> Vec<&'a String> {
    let table = |name: &str| words.tables.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    let all: Vec<&str> = tokens(text).collect();
    let alias = || {
        (0..all.len()).find_map(|at| {
            let found = table(all[at])?;
            let next = all.get(at + 1).filter(|next| !next.eq_ignore_ascii_case("as")).or_else(|| all.get(at + 2))?;
            next.eq_ignore_ascii_case(owner).then_some(found)
        })
    };
    table(owner).or_else(alias).map_or_else(Vec::new, |(_, columns)| columns.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> Words {
        let table = |name: &str, columns: &[&str]| {
            (name.to_owned(), columns.iter().map(|column| (*column).to_owned()).collect())
        };
        Words {
            tables: vec![
                table("scenarios", &["scenario_id", "name", "status"]),
                table("step_costs", &["scenario_id", "start_ns", "steps"]),
                table("base.metrics", &["metric", "value"]),
            ],
            functions: vec!["step_cost".to_owned(), "sum".to_owned()],
            commands: vec!["\\d", "\\df", "\\q"],
        }
    }

    fn found(earlier: &str, before: &str) -> Vec<String> {
        complete(&words(), earlier, before).1
    }

    #[test]
    fn tables_follow_from_and_join() {
        assert_eq!(found("", "SELECT * FROM s"), ["scenarios", "step_costs"]);
        assert_eq!(found("SELECT *\nFROM", "st"), ["step_costs"]);
        assert_eq!(found("", "SELECT * FROM scenarios JOIN "), ["base.metrics", "scenarios", "step_costs"]);
    }

    #[test]
    fn columns_are_those_of_the_tables_that_are_named() {
        assert_eq!(found("FROM step_costs", "WHERE sta"), ["start_ns"]);
        assert_eq!(found("", "SELECT sta"), ["start_ns", "status"]);
        assert_eq!(found("", "SELECT * FROM step_costs AS c WHERE c.st"), ["start_ns", "steps"]);
        assert_eq!(found("", "SELECT * FROM scenarios s JOIN step_costs c ON s.na"), ["name"]);
        assert_eq!(complete(&words(), "FROM step_costs c", "c.st").0, 2);
        assert_eq!(found("", "x.st"), [""; 0]);
    }

    #[test]
    fn functions_open_and_keywords_follow_the_case() {
        assert_eq!(found("FROM scenarios", "su"), ["sum("]);
        assert_eq!(found("FROM scenarios", "sel"), ["select"]);
        assert_eq!(found("FROM scenarios", "SEL"), ["SELECT"]);
        assert_eq!(found("FROM scenarios", ""), [""; 0]);
    }

    #[test]
    fn commands_follow_a_backslash() {
        assert_eq!(found("", "\\d"), ["\\d", "\\df"]);
        assert_eq!(found("", "\\d sc"), ["scenarios"]);
        assert_eq!(found("", "\\q x"), [""; 0]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_a_place_within_it(text in "\\PC{0,30}") {
            let (start, _) = complete(&words(), "", &text);
            assert!(text.is_char_boundary(start));
        }
    }
}
