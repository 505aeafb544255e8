//! The bytes of a file as they are on disk, read and hashed by a thread of their own.
//!
//! Hashing takes as long as parsing a light format, so that the two run side by side. Chunks travel in both directions and
//! are used again: memory stays at a handful of chunks, whatever the file.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use sha2::{Digest, Sha256};

/// Bytes of a chunk.
const CHUNK: usize = 256 << 10;

/// Chunks that reading may be ahead.
const AHEAD: usize = 4;

/// A reader whose bytes are hashed.
#[derive(Debug)]
pub(super) struct Hashed {
    chunks: Receiver<io::Result<Vec<u8>>>,
    spare: Sender<Vec<u8>>,
    chunk: Vec<u8>,
    at: usize,
    thread: JoinHandle<Sha256>,
}

impl Hashed {
    /// Starts to read.
    pub(super) fn new(reader: Box<dyn Read + Send>) -> Self {
        let (sender, chunks) = sync_channel(AHEAD);
        let (spare, used) = channel();
        let thread = thread::spawn(move || read_all(reader, &sender, &used));
        Self { chunks, spare, chunk: Vec::new(), at: 0, thread }
    }

    /// Reads what is left and gives the hash of all bytes, in hex, and how many were left.
    pub(super) fn finish(mut self) -> io::Result<(String, u64)> {
        let left = io::copy(&mut self, &mut io::sink())?;
        drop(self.chunks);
        let digest = self.thread.join().map_err(|_| io::Error::other("the reading thread failed"))?;
        Ok((crate::store::hex(&digest.finalize()), left))
    }
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() {
            // The thread ends after the last chunk; so does the channel.
            let Ok(next) = self.chunks.recv() else { return Ok(0) };
            let used = std::mem::replace(&mut self.chunk, next?);
            self.at = 0;
            // The thread may be gone already; then nobody needs the chunk.
            let _ = self.spare.send(used);
        }
        let count = buffer.len().min(self.chunk.len() - self.at);
        buffer[..count].copy_from_slice(&self.chunk[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Sends all chunks, or as many as are wanted, and gives their hash.
fn read_all(
    mut reader: Box<dyn Read + Send>,
    sender: &SyncSender<io::Result<Vec<u8>>>,
    used: &Receiver<Vec<u8>>,
) -> Sha256 {
    let mut digest = Sha256::new();
    loop {
        let mut chunk = used.try_recv().unwrap_or_default();
        chunk.resize(CHUNK, 0);
        let count = loop {
            match reader.read(&mut chunk) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        let sent = match count {
            Ok(0) => return digest,
            Ok(count) => {
                digest.update(&chunk[..count]);
                chunk.truncate(count);
                sender.send(Ok(chunk))
            }
            Err(error) => {
                // Nothing after it can be trusted.
                let _ = sender.send(Err(error));
                return digest;
            }
        };
        if sent.is_err() {
            return digest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives few bytes at a time.
    struct Slow(Vec<u8>, usize);

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(buffer.len()).min(self.0.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn every_byte_arrives_once_and_is_hashed() {
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|at| (at % 251) as u8).collect();
        for step in [1000, 300_000, 2_000_000] {
            let mut hashed = Hashed::new(Box::new(Slow(bytes.clone(), step)));
            let mut head = vec![0; 700_000];
            hashed.read_exact(&mut head).unwrap();
            assert_eq!(head, bytes[..700_000]);
            let (hash, left) = hashed.finish().unwrap();
            assert_eq!((hash, left), (crate::store::hex(&Sha256::digest(&bytes)), 300_000));
        }
    }

    #[test]
    fn a_reader_that_is_left_ends_its_thread() {
        let hashed = Hashed::new(Box::new(io::repeat(7)));
        let Hashed { chunks, thread, .. } = hashed;
        drop(chunks);
        thread.join().unwrap();
    }
}
