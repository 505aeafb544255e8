//! Keys as the line takes them. `console` gives up a sequence that it does not know in the middle, and what is left of it
//! would be typed: Ctrl and an arrow came as `5D`. Here a sequence is read to its end, and what is no key does nothing.

use console::Key;

/// The beginning of a sequence whose end has not come yet.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    begun: Vec<char>,
}

impl Sequence {
    /// The key that is complete with this one, if any is.
    pub(super) fn push(&mut self, key: Key) -> Option<Key> {
        let last = match key {
            Key::UnknownEscSeq(chars) if self.begun.is_empty() && matches!(chars.first(), Some('[' | 'O')) => {
                self.begun = chars;
                return self.ended();
            }
            Key::Char(char) if !self.begun.is_empty() => char,
            key => {
                self.begun.clear();
                return Some(key);
            }
        };
        if !(' '..='~').contains(&last) {
            self.begun.clear();
            return Some(Key::Char(last));
        }
        self.begun.push(last);
        self.ended()
    }

    /// The key of the sequence, if it has ended: by its last character, and by whether another key is held.
    fn ended(&mut self) -> Option<Key> {
        let last = self.begun.last().copied().filter(|_| self.begun.len() > 1)?;
        if !('@'..='~').contains(&last) {
            return None;
        }
        let is_held = std::mem::take(&mut self.begun).contains(&';');
        Some(match last {
            'A' => Key::ArrowUp,
            'B' => Key::ArrowDown,
            'C' if is_held => Key::UnknownEscSeq(vec!['f']),
            'D' if is_held => Key::UnknownEscSeq(vec!['b']),
            'C' => Key::ArrowRight,
            'D' => Key::ArrowLeft,
            'F' => Key::End,
            'H' => Key::Home,
            _ => Key::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(pushed: Vec<Key>) -> Vec<Key> {
        let mut sequence = Sequence::default();
        pushed.into_iter().filter_map(|key| sequence.push(key)).collect()
    }

    #[test]
    fn a_sequence_is_read_to_its_end() {
        let begun = |text: &str| Key::UnknownEscSeq(text.chars().collect());
        // Ctrl and left as `console` gives it, then a letter.
        let held = vec![begun("[1;"), Key::Char('5'), Key::Char('D'), Key::Char('x')];
        assert_eq!(keys(held), [begun("b"), Key::Char('x')]);
        assert_eq!(keys(vec![begun("[15"), Key::Char('~'), Key::Char('x')]), [Key::Unknown, Key::Char('x')]);
        assert_eq!(keys(vec![begun("O"), Key::Char('A')]), [Key::ArrowUp]);
        assert_eq!(keys(vec![begun("["), Key::Char('C')]), [Key::ArrowRight]);
        assert_eq!(keys(vec![begun("f")]), [begun("f")]);
        // What breaks off is forgotten.
        assert_eq!(keys(vec![begun("[1;"), Key::Enter, Key::Char('D')]), [Key::Enter, Key::Char('D')]);
        assert_eq!(keys(vec![begun("[1;"), Key::Char('é')]), [Key::Char('é')]);
    }
}
