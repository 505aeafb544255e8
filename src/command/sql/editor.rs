//! A line that is typed: what each key does to it. Knows no terminal, so that tests can press keys.
//!
//! `console` reads the keys and is there already for progress bars. The usual crates for prompts would switch on features of
//! `libc` or `rustix`, which all of DataFusion would then be built with.

use console::Key;
use unicode_width::UnicodeWidthChar;

/// What a key led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// The line goes on.
    Typing,
    /// The line goes on; these could follow.
    Offer(Vec<String>),
    /// The line is finished.
    Entered(String),
    /// The line is given up.
    Cancelled,
    /// Nothing more is typed.
    Ended,
}

/// What could stand at the end of the text before the cursor: where it begins, and each of them.
pub(super) type Completed = (usize, Vec<String>);

/// A line, the cursor in it, and the place in the history.
pub(super) struct Editor<'a> {
    text: Vec<char>,
    cursor: usize,
    history: &'a [String],
    /// Place in the history; its length is the line itself.
    at: usize,
    /// The line as it was before the history was looked at.
    own: Vec<char>,
}

impl<'a> Editor<'a> {
    pub(super) fn new(history: &'a [String]) -> Self {
        Self { text: Vec::new(), cursor: 0, history, at: history.len(), own: Vec::new() }
    }

    /// The part of the line around the cursor that fits into so many columns, and the column in it where the cursor stands.
    pub(super) fn window(&self, columns: usize) -> (String, usize) {
        let mut start = self.cursor;
        let mut at = 0;
        while let Some(wider) =
            start.checked_sub(1).map(|before| at + width(self.text[before])).filter(|w| *w <= columns)
        {
            (start, at) = (start - 1, wider);
        }
        let mut used = 0;
        let fits = self.text[start..].iter().take_while(|char| {
            used += width(**char);
            used <= columns
        });
        (fits.map(|char| shown(*char)).collect(), at)
    }

    /// Presses a key; `complete` says what could follow the text before the cursor.
    pub(super) fn press(&mut self, key: &Key, complete: &dyn Fn(&str) -> Completed) -> Step {
        match key {
            Key::Enter => return Step::Entered(self.text.iter().collect()),
            Key::CtrlC => return Step::Cancelled,
            Key::Char('\u{4}') if self.text.is_empty() => return Step::Ended,
            Key::Tab => return self.complete(complete),
            Key::ArrowLeft | Key::Char('\u{2}') => self.cursor = self.cursor.saturating_sub(1),
            Key::ArrowRight | Key::Char('\u{6}') => self.cursor = (self.cursor + 1).min(self.text.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.text.len(),
            Key::ArrowUp | Key::Char('\u{10}') => self.recall(self.at.checked_sub(1)),
            Key::ArrowDown | Key::Char('\u{e}') => self.recall(Some(self.at + 1)),
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            Key::Del | Key::Char('\u{4}') if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            Key::Char('\u{b}') => self.text.truncate(self.cursor),
            Key::Char('\u{15}') => self.remove_before(0),
            Key::Char('\u{17}') => self.remove_before(self.word_start()),
            Key::UnknownEscSeq(chars) if chars == &['b'] => self.cursor = self.word_start(),
            Key::UnknownEscSeq(chars) if chars == &['f'] => self.cursor = self.word_end(),
            Key::Char(char) if !char.is_control() => {
                self.text.insert(self.cursor, *char);
                self.cursor += 1;
            }
            _ => {}
        }
        Step::Typing
    }

    fn remove_before(&mut self, start: usize) {
        self.text.drain(start..self.cursor);
        self.cursor = start;
    }

    /// Where the word before the cursor begins.
    fn word_start(&self) -> usize {
        let before = &self.text[..self.cursor];
        let end = before.iter().rposition(|char| !char.is_whitespace()).map_or(0, |at| at + 1);
        before[..end].iter().rposition(|char| char.is_whitespace()).map_or(0, |at| at + 1)
    }

    /// Where the word behind the cursor ends.
    fn word_end(&self) -> usize {
        let behind = &self.text[self.cursor..];
        let start = behind.iter().position(|char| !char.is_whitespace()).unwrap_or(behind.len());
        let length = behind[start..].iter().position(|char| char.is_whitespace()).unwrap_or(behind.len() - start);
        self.cursor + start + length
    }

    fn recall(&mut self, place: Option<usize>) {
        let Some(place) = place.filter(|&place| place <= self.history.len()) else { return };
        if self.at == self.history.len() {
            self.own = std::mem::take(&mut self.text);
        }
        self.text = self.history.get(place).map_or_else(|| std::mem::take(&mut self.own), |old| old.chars().collect());
        (self.at, self.cursor) = (place, self.text.len());
    }

    /// Puts in what all candidates have in common; where that adds nothing, offers them.
    fn complete(&mut self, complete: &dyn Fn(&str) -> Completed) -> Step {
        let before: String = self.text[..self.cursor].iter().collect();
        let (start, candidates) = complete(&before);
        let Some(first) = candidates.first() else { return Step::Typing };
        let mut common: Vec<char> = first.chars().collect();
        for other in &candidates[1..] {
            let alike = common.iter().zip(other.chars()).take_while(|(a, b)| **a == *b).count();
            common.truncate(alike);
        }
        let typed = before.get(start..).map_or(0, |word| word.chars().count());
        if common.len() < typed || (candidates.len() > 1 && common.len() == typed) {
            return Step::Offer(candidates);
        }
        if candidates.len() == 1 && !first.ends_with(['(', '.']) {
            common.push(' ');
        }
        self.remove_before(self.cursor - typed);
        let length = common.len();
        self.text.splice(self.cursor..self.cursor, common);
        self.cursor += length;
        Step::Typing
    }
}

/// A character as it may be drawn: a history that somebody edited steers no terminal.
pub(super) fn shown(char: char) -> char {
    if char.is_control() { char::REPLACEMENT_CHARACTER } else { char }
}

/// Columns that a character takes: two if it is wide, none if it only marks the one before it.
fn width(char: char) -> usize {
    shown(char).width().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Completed {
        (0, Vec::new())
    }

    fn type_in(editor: &mut Editor<'_>, text: &str) {
        for char in text.chars() {
            assert_eq!(editor.press(&Key::Char(char), &none), Step::Typing);
        }
    }

    fn text(editor: &Editor<'_>) -> (String, usize) {
        let (text, cursor) = (&editor.text, editor.cursor);
        (text.iter().collect(), cursor)
    }

    #[test]
    fn keys_move_insert_and_remove() {
        let mut editor = Editor::new(&[]);
        type_in(&mut editor, "selct öne");
        for _ in 0..6 {
            editor.press(&Key::ArrowLeft, &none);
        }
        type_in(&mut editor, "e");
        assert_eq!(text(&editor), ("select öne".to_owned(), 4));
        editor.press(&Key::End, &none);
        editor.press(&Key::Backspace, &none);
        editor.press(&Key::Char('\u{17}'), &none);
        assert_eq!(text(&editor), ("select ".to_owned(), 7));
        editor.press(&Key::Home, &none);
        editor.press(&Key::Del, &none);
        assert_eq!(text(&editor), ("elect ".to_owned(), 0));
        editor.press(&Key::ArrowRight, &none);
        editor.press(&Key::Char('\u{b}'), &none);
        assert_eq!(text(&editor), ("e".to_owned(), 1));
        editor.press(&Key::Char('\u{15}'), &none);
        assert_eq!(text(&editor), (String::new(), 0));
        for harmless in [Key::Backspace, Key::Del, Key::Char('\u{7}'), Key::Unknown, Key::ArrowLeft, Key::ArrowUp] {
            assert_eq!(editor.press(&harmless, &none), Step::Typing);
        }
        assert_eq!(text(&editor), (String::new(), 0));
    }

    #[test]
    fn words_are_passed_over() {
        let mut editor = Editor::new(&[]);
        type_in(&mut editor, "select  count");
        let word = |letter: char| Key::UnknownEscSeq(vec![letter]);
        let mut seen = Vec::new();
        for letter in ['b', 'b', 'b', 'f', 'f', 'f'] {
            editor.press(&word(letter), &none);
            seen.push(text(&editor).1);
        }
        assert_eq!(seen, [8, 0, 0, 6, 13, 13]);
    }

    #[test]
    fn a_window_has_the_cursor_in_it_and_counts_columns() {
        let mut editor = Editor::new(&[]);
        type_in(&mut editor, "a漢字b");
        assert_eq!(editor.window(10), ("a漢字b".to_owned(), 6));
        assert_eq!(editor.window(5), ("漢字b".to_owned(), 5));
        assert_eq!(editor.window(4), ("字b".to_owned(), 3));
        editor.press(&Key::Home, &none);
        assert_eq!(editor.window(4), ("a漢".to_owned(), 0));
        let history = ["\u{1b}[2J".to_owned()];
        let mut editor = Editor::new(&history);
        editor.press(&Key::ArrowUp, &none);
        assert_eq!(editor.window(9), ("\u{fffd}[2J".to_owned(), 4));
    }

    #[test]
    fn lines_end_in_three_ways() {
        let mut editor = Editor::new(&[]);
        assert_eq!(editor.press(&Key::Char('\u{4}'), &none), Step::Ended);
        type_in(&mut editor, "x");
        assert_eq!(editor.press(&Key::Char('\u{4}'), &none), Step::Typing);
        assert_eq!(editor.press(&Key::Enter, &none), Step::Entered("x".to_owned()));
        assert_eq!(editor.press(&Key::CtrlC, &none), Step::Cancelled);
    }

    #[test]
    fn the_history_is_walked_and_the_own_line_comes_back() {
        let history = ["one".to_owned(), "two".to_owned()];
        let mut editor = Editor::new(&history);
        type_in(&mut editor, "own");
        let mut seen = Vec::new();
        for key in [Key::ArrowUp, Key::ArrowUp, Key::ArrowUp, Key::ArrowDown, Key::ArrowDown, Key::ArrowDown] {
            editor.press(&key, &none);
            seen.push(text(&editor).0);
        }
        assert_eq!(seen, ["two", "one", "one", "two", "own", "own"]);
    }

    #[test]
    fn tab_puts_in_what_candidates_share_and_offers_the_rest() {
        let words = ["step_costs", "steps"];
        let complete = |before: &str| {
            let start = before.rfind(' ').map_or(0, |at| at + 1);
            let fits = words.iter().filter(|word| word.starts_with(&before[start..]));
            (start, fits.map(|word| (*word).to_owned()).collect())
        };
        let mut editor = Editor::new(&[]);
        type_in(&mut editor, "from s");
        assert_eq!(editor.press(&Key::Tab, &complete), Step::Typing);
        assert_eq!(text(&editor), ("from step".to_owned(), 9));
        let offered = words.map(str::to_owned).to_vec();
        assert_eq!(editor.press(&Key::Tab, &complete), Step::Offer(offered));
        type_in(&mut editor, "s");
        editor.press(&Key::Tab, &complete);
        assert_eq!(text(&editor), ("from steps ".to_owned(), 11));
        assert_eq!(editor.press(&Key::Tab, &none), Step::Typing);
    }

    proptest::proptest! {
        #[test]
        fn no_key_puts_the_cursor_outside(keys in proptest::collection::vec(0_u8..14, 0..60)) {
            let history = ["ab".to_owned(), String::new()];
            let mut editor = Editor::new(&history);
            for key in keys {
                let key = match key {
                    0 => Key::ArrowLeft, 1 => Key::ArrowRight, 2 => Key::ArrowUp, 3 => Key::ArrowDown,
                    4 => Key::Backspace, 5 => Key::Del, 6 => Key::Home, 7 => Key::End, 8 => Key::Tab,
                    9 => Key::Char('\u{b}'), 10 => Key::Char('\u{15}'), 11 => Key::Char('\u{17}'), 12 => Key::Char('ß'),
                    _ => Key::Char(' '),
                };
                editor.press(&key, &|before| (before.len(), vec!["x".to_owned(), "xy".to_owned()]));
                let (text, cursor) = (&editor.text, editor.cursor);
                assert!(cursor <= text.len());
                let (shown, column) = editor.window(5);
                assert!(column <= 5 && unicode_width::UnicodeWidthStr::width(shown.as_str()) <= 5);
            }
        }
    }
}
