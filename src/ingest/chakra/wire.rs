//! The wire format of Protocol Buffers, as much of it as a reader needs: fields one after the other.

/// The value of a field, as it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    Fixed64(u64),
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// The fields of a message.
#[derive(Debug, Clone)]
pub(super) struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset of the next byte.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Whether bytes are left.
    pub(super) fn has_more(&self) -> bool {
        self.at < self.bytes.len()
    }

    /// A variable-length number: seven bits a byte, the lowest first; none if it is cut or does not fit.
    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// So many bytes.
    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(count).ok()?)?;
        let bytes = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    /// The next field and its value: none at the end, and an error for what is no field.
    pub(super) fn next(&mut self) -> Option<Result<(u64, Value<'a>), ()>> {
        self.has_more().then(|| self.field().ok_or(()))
    }

    fn field(&mut self) -> Option<(u64, Value<'a>)> {
        let tag = self.number()?;
        let (field, kind) = (tag >> 3, tag & 7);
        if field == 0 {
            return None;
        }
        let value = match kind {
            0 => Value::Number(self.number()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?)),
            2 => {
                let count = self.number()?;
                Value::Bytes(self.bytes(count)?)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?)),
            // Groups are not in use, and nothing else exists.
            _ => return None,
        };
        Some((field, value))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Numbers come back from bytes that a plain loop wrote.
        #[test]
        fn numbers_come_back(value in any::<u64>(), shift in 0_u32..64) {
            let value = value >> shift;
            let (mut bytes, mut left) = (Vec::new(), value);
            while left >= 128 {
                bytes.push((left % 128) as u8 + 128);
                left /= 128;
            }
            bytes.push(left as u8);
            prop_assert_eq!(Fields::new(&bytes).number(), Some(value));
            prop_assert_eq!(Fields::new(&bytes[..bytes.len() - 1]).number(), None);
        }

        /// Fields of any bytes end.
        #[test]
        fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut fields = Fields::new(&bytes);
            while let Some(Ok(_)) = fields.next() {}
            prop_assert!(fields.at() <= bytes.len());
        }
    }

    #[test]
    fn each_kind_of_value_is_read() {
        let bytes = [8, 150, 1, 18, 2, b'h', b'i', 29, 1, 0, 0, 0, 33, 2, 0, 0, 0, 0, 0, 0, 0];
        let mut fields = Fields::new(&bytes);
        assert_eq!(fields.next(), Some(Ok((1, Value::Number(150)))));
        assert_eq!(fields.next(), Some(Ok((2, Value::Bytes(b"hi")))));
        assert_eq!(fields.next(), Some(Ok((3, Value::Fixed32(1)))));
        assert_eq!(fields.next(), Some(Ok((4, Value::Fixed64(2)))));
        assert_eq!(fields.next(), None);
        assert_eq!(Fields::new(&[11]).next(), Some(Err(())), "a group");
        assert_eq!(Fields::new(&[0, 0]).next(), Some(Err(())), "field 0");
        assert_eq!(Fields::new(&[0xff; 11]).next(), Some(Err(())), "a number of more than 64 bits");
    }
}
