//! The prompt of `kvtoll sql`: lines with history and completion, statements that end in `;`, and commands that begin with
//! a backslash.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use console::{Key, Term};
use engine::error::{Error, Result};

use super::complete::{Words, complete};
use super::editor::{Editor, Step, shown};
use super::keys::Sequence;
use super::{Args, open};
use crate::command::{Exit, say, schema, show, talk};
use crate::output::Format;
use crate::sql::{self, Session};
use crate::store::Store;

/// Commands of the prompt: name, what follows it, what it does.
const COMMANDS: [(&str, &str, &str); 7] = [
    ("\\?", "", "show this"),
    ("\\d", "[TABLE]", "list tables and views, or the columns of one"),
    ("\\df", "", "list functions"),
    ("\\dq", "[QUERY]", "list named questions, or show the SQL of one"),
    ("\\run", "[RUN]", "list runs, or show the tables of one"),
    ("\\format", "FORMAT", "table, csv, tsv, json, ndjson or md"),
    ("\\q", "", "leave"),
];

/// Lines of the history that are kept.
const MOST_LINES: usize = 1000;

/// Names that are listed after a Tab.
const MOST_OFFERED: usize = 100;

/// What the prompt works on.
struct Prompt<'a> {
    args: &'a Args,
    format: Format,
    params: &'a [(String, String)],
    session: Session,
    words: Words,
}

/// Runs the prompt until it is left.
pub(super) fn run(args: &Args, format: Format, params: &[(String, String)]) -> Result<Exit> {
    let session = open(&args.store, args.run.as_deref())?;
    let words = words(&session)?;
    let mut prompt = Prompt { args, format, params, session, words };
    talk::note("statements end in `;`, Tab completes, `\\?` shows commands, Ctrl-D leaves");
    let term = Term::stderr();
    let path = history_path();
    let mut history = path.as_ref().map_or_else(Vec::new, read_history);
    let mut statement = String::new();
    loop {
        let sign = if statement.is_empty() { "kvtoll> " } else { "   ...> " };
        let earlier = statement.clone();
        let line = read_line(&term, sign, &history, &|before| complete(&prompt.words, &earlier, before));
        match line.map_err(|error| Error::run(format!("cannot read from the terminal: {error}")))? {
            Line::Text(line) => {
                remember(&mut history, path.as_ref(), &line);
                if statement.is_empty() && line.trim_start().starts_with('\\') {
                    match command(&mut prompt, line.trim()) {
                        Ok(true) => return Ok(Exit::Done),
                        Ok(false) => {}
                        Err(error) => talk::error(&error),
                    }
                    continue;
                }
                statement.push_str(&line);
                statement.push('\n');
                if sql::script(&statement).is_complete {
                    answer(&prompt, &std::mem::take(&mut statement));
                }
            }
            Line::Cancelled => statement.clear(),
            Line::Ended => return Ok(Exit::Done),
        }
    }
}

/// A line that was typed, or why there is none.
enum Line {
    Text(String),
    Cancelled,
    Ended,
}

fn read_line(
    term: &Term,
    sign: &str,
    history: &[String],
    complete: &dyn Fn(&str) -> super::editor::Completed,
) -> std::io::Result<Line> {
    let mut editor = Editor::new(history);
    let mut sequence = Sequence::default();
    draw(term, sign, &editor)?;
    loop {
        let key = match term.read_key_raw() {
            Ok(key) => key,
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(Line::Ended),
            Err(error) => return Err(error),
        };
        let Some(key) = sequence.push(key) else { continue };
        if key == Key::Char('\u{c}') {
            term.clear_screen()?;
        }
        let step = editor.press(&key, complete);
        if let Step::Offer(names) = &step {
            term.write_line("")?;
            term.write_line(&in_columns(names, usize::from(term.size().1)))?;
        }
        draw(term, sign, &editor)?;
        match step {
            Step::Typing | Step::Offer(_) => {}
            Step::Entered(line) => {
                // Of a line that was longer than the terminal, only a part is on it.
                let is_cut = editor.window(room(term, sign)).0.chars().count() < line.chars().count();
                let whole: String = line.chars().map(shown).collect();
                let whole = if is_cut { format!("\r{sign}{whole}\u{1b}[K") } else { String::new() };
                term.write_line(&whole)?;
                return Ok(Line::Text(line));
            }
            Step::Cancelled => {
                term.write_line("^C")?;
                return Ok(Line::Cancelled);
            }
            Step::Ended => {
                term.write_line("")?;
                return Ok(Line::Ended);
            }
        }
    }
}

/// Columns for the line behind its sign.
fn room(term: &Term, sign: &str) -> usize {
    usize::from(term.size().1).saturating_sub(sign.len() + 1).max(8)
}

/// Draws the line on one row of the terminal: of a longer one, the part around the cursor.
fn draw(term: &Term, sign: &str, editor: &Editor<'_>) -> std::io::Result<()> {
    let (shown, column) = editor.window(room(term, sign));
    let column = sign.len() + column;
    term.write_str(&format!("\r{sign}{shown}\u{1b}[K\r\u{1b}[{column}C"))?;
    term.flush()
}

/// Names side by side; of many, the first and how many more there are.
fn in_columns(names: &[String], width: usize) -> String {
    let shown = &names[..names.len().min(MOST_OFFERED)];
    let widest = shown.iter().map(String::len).max().unwrap_or(0) + 2;
    let per_line = (width / widest).max(1);
    let mut text = String::new();
    for line in shown.chunks(per_line) {
        if !text.is_empty() {
            text.push('\n');
        }
        for name in line {
            let _ = write!(text, "{name:<widest$}");
        }
        text.truncate(text.trim_end().len());
    }
    if shown.len() < names.len() {
        let _ = write!(text, "\n... {} more", names.len() - shown.len());
    }
    text
}

/// Runs each statement of a text and shows what it gives; an error ends the text, not the prompt.
fn answer(prompt: &Prompt<'_>, text: &str) {
    for statement in sql::script(text).statements {
        let start = Instant::now();
        let shown = sql::query(&prompt.session, &statement.placed(), prompt.params).and_then(|batches| {
            show(&batches, prompt.format, prompt.args.shown.max_rows, prompt.args.shown.output.as_deref())?;
            Ok(batches.iter().map(arrow::array::RecordBatch::num_rows).sum::<usize>())
        });
        match shown {
            Ok(rows) => {
                let word = if rows == 1 { "row" } else { "rows" };
                talk::note(&format!("{rows} {word} in {:.3} s", start.elapsed().as_secs_f64()));
            }
            Err(error) => return talk::error(&error),
        }
    }
}

/// Carries out a command; true where it leaves the prompt.
fn command(prompt: &mut Prompt<'_>, text: &str) -> Result<bool> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim().trim_end_matches(';');
    match (name, rest) {
        ("\\q", _) => return Ok(true),
        ("\\?", _) => {
            let line = |(name, what, doc): &(&str, &str, &str)| format!("{:<18} {doc}\n", format!("{name} {what}"));
            say(&COMMANDS.iter().map(line).collect::<String>())?;
        }
        ("\\d", "") => {
            say(&schema::tables()?)?;
        }
        ("\\d", table) => {
            say(&schema::describe(table)?)?;
        }
        ("\\df", _) => {
            say(&functions(&prompt.words.functions))?;
        }
        ("\\dq", "") => {
            crate::command::list::queries()?;
        }
        ("\\dq", query) => {
            say(&format!("{}\n", sql::find(query)?.sql.trim_end()))?;
        }
        ("\\run", "") => {
            say(&runs(prompt)?)?;
        }
        ("\\run", run) => {
            prompt.session = open(&prompt.args.store, Some(run))?;
            prompt.words = words(&prompt.session)?;
        }
        ("\\format", format) => prompt.format = Format::parse(format)?,
        _ => {
            let known = COMMANDS.iter().map(|(name, ..)| *name);
            return Err(engine::error::unknown("command", name, known));
        }
    }
    Ok(false)
}

/// The runs of the store, the one that is shown with a star.
fn runs(prompt: &Prompt<'_>) -> Result<String> {
    let store = Store::open(&prompt.args.store)?;
    let mut text = String::new();
    for run in store.runs() {
        let star = if prompt.session.run() == Some(run.id.as_str()) { '*' } else { ' ' };
        let _ = writeln!(text, "{star} {}  {} scenarios", run.id, run.rows("scenarios"));
    }
    Ok(text)
}

/// Functions of kvtoll's own with a sentence each, then the names of all others.
fn functions(names: &[String]) -> String {
    let own = sql::FUNCTIONS.iter().map(|own| format!("{}\n  {}\n", own.usage, own.doc));
    let others: Vec<&str> =
        names.iter().map(String::as_str).filter(|name| !sql::FUNCTIONS.iter().any(|own| own.name == *name)).collect();
    format!("{}and of SQL: {}\n", own.collect::<String>(), others.join(", "))
}

fn words(session: &Session) -> Result<Words> {
    Ok(Words {
        tables: sql::names(session)?,
        functions: sql::function_names(session),
        commands: COMMANDS.iter().map(|(name, ..)| *name).collect(),
    })
}

/// Where lines are kept: `KVTOLL_HISTORY`, else below the user's state folder.
fn history_path() -> Option<PathBuf> {
    let of = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = || of("XDG_STATE_HOME").or_else(|| of("HOME").map(|home| home.join(".local/state")));
    of("KVTOLL_HISTORY").or_else(|| state().map(|folder| folder.join("kvtoll/history")))
}

/// The newest lines of the history; a file that cannot be read is an empty one.
fn read_history(path: &PathBuf) -> Vec<String> {
    let text = std::fs::read(path).unwrap_or_default();
    let lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(MOST_LINES)..].to_vec()
}

/// Adds a line to the history, once where it is repeated. A history that cannot be kept stops nobody.
fn remember(history: &mut Vec<String>, path: Option<&PathBuf>, line: &str) {
    if line.trim().is_empty() || history.last().is_some_and(|last| last == line) {
        return;
    }
    history.push(line.to_owned());
    let Some(path) = path else { return };
    if let Some(folder) = path.parent() {
        let _ = std::fs::create_dir_all(folder);
    }
    let kept = &history[history.len().saturating_sub(MOST_LINES)..];
    let _ = std::fs::write(path, format!("{}\n", kept.join("\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_side_by_side() {
        let names: Vec<String> = ["a", "bb", "ccc", "d"].map(str::to_owned).to_vec();
        assert_eq!(in_columns(&names, 12), "a    bb\nccc  d");
        assert_eq!(in_columns(&names, 1), "a\nbb\nccc\nd");
        let many: Vec<String> = (0..102).map(|number| number.to_string()).collect();
        assert!(in_columns(&many, 400).ends_with("... 2 more"));
    }

    #[test]
    fn the_history_keeps_each_line_once_and_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("below/history");
        let mut history = Vec::new();
        for line in ["SELECT 1;", "SELECT 1;", " ", "SELECT 2;"] {
            remember(&mut history, Some(&path), line);
        }
        assert_eq!(read_history(&path), ["SELECT 1;", "SELECT 2;"]);
        for number in 0..MOST_LINES {
            remember(&mut history, None, &number.to_string());
        }
        remember(&mut history, Some(&path), "last");
        let kept = read_history(&path);
        assert_eq!((kept.len(), kept.last().map(String::as_str)), (MOST_LINES, Some("last")));
    }
}
