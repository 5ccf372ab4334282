//! Request traces in Mooncake's format: one JSON object a line, plain or gzip. Owns reading and checking; whatever is
//! wrong is told with its line. The rest of the replay relies on what is checked here: blocks are parent-chained, so
//! that an id stands for its block and all before it.

use serde::Deserialize;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// Tokens of a full block, as the format has it.
pub const BLOCK_TOKENS: u64 = 512;

/// The longest line that is read: 65,536 blocks of 20 digits fit.
const LINE_BYTES_MAX: u64 = 2 << 20;

/// One request, in the order of the trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, in milliseconds since the trace's start.
    pub arrival_ms: u64,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Its prompt's blocks; the last one may be partial.
    pub blocks: Vec<u64>,
}

/// A line as it stands in the file.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    hash_ids: Vec<u64>,
}

/// What is wrong with a trace.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read.
    #[error("can't read the trace: {0}")]
    Io(#[from] io::Error),
    /// A line is not a request.
    #[error("line {line} of the trace: {reason}")]
    Line {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no request in it.
    #[error("the trace holds no request")]
    Empty,
}

impl Request {
    /// Tokens of each block: all full, but the last one takes what remains.
    pub fn block_token_counts(&self) -> impl Iterator<Item = u64> + '_ {
        let last = self.blocks.len().saturating_sub(1);
        let rest = self.input_tokens.saturating_sub(BLOCK_TOKENS * last as u64);
        (0..self.blocks.len()).map(move |i| if i == last { rest } else { BLOCK_TOKENS })
    }

    /// Tokens in the first `blocks` blocks.
    pub fn tokens_in(&self, blocks: usize) -> u64 {
        (BLOCK_TOKENS * blocks as u64).min(self.input_tokens)
    }
}

/// Reads the requests of `path`, gzip or not, at most `limit` of them when it is given.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Request>, Error> {
    let mut file = BufReader::new(File::open(path)?);
    let is_gzip = file.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    if is_gzip { parse(BufReader::new(flate2::bufread::MultiGzDecoder::new(file)), limit) } else { parse(file, limit) }
}

fn parse(mut lines: impl BufRead, limit: Option<usize>) -> Result<Vec<Request>, Error> {
    let mut requests: Vec<Request> = Vec::new();
    let mut parents: HashMap<u64, Option<u64>> = HashMap::new();
    let mut text = Vec::new();
    let mut line = 0;
    while requests.len() < limit.unwrap_or(usize::MAX) {
        line += 1;
        let fail = |reason: String| Error::Line { line, reason };
        text.clear();
        let read_bytes = (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut text)?;
        if read_bytes == 0 {
            break;
        }
        if read_bytes as u64 == LINE_BYTES_MAX {
            return Err(fail(format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let raw: Line = serde_json::from_slice(&text).map_err(|error| fail(error.to_string()))?;
        let request = check(raw, &mut parents).map_err(fail)?;
        if requests.last().is_some_and(|last| last.arrival_ms > request.arrival_ms) {
            return Err(fail("timestamp goes back: requests must be in order of arrival".into()));
        }
        requests.push(request);
    }
    if requests.is_empty() { Err(Error::Empty) } else { Ok(requests) }
}

fn check(raw: Line, parents: &mut HashMap<u64, Option<u64>>) -> Result<Request, String> {
    if !(raw.timestamp.is_finite() && raw.timestamp >= 0.0) {
        return Err(format!("timestamp {} is not a time", raw.timestamp));
    }
    if raw.input_length > i32::MAX as u64 {
        return Err(format!("input_length {} is over what a lookup can say", raw.input_length));
    }
    let blocks = raw.input_length.div_ceil(BLOCK_TOKENS);
    if blocks != raw.hash_ids.len() as u64 {
        return Err(format!(
            "{} hash_ids for {} tokens; blocks of {BLOCK_TOKENS} tokens make {blocks}",
            raw.hash_ids.len(),
            raw.input_length
        ));
    }
    let mut parent = None;
    for &id in &raw.hash_ids {
        if *parents.entry(id).or_insert(parent) != parent {
            return Err(format!("hash id {id} follows another block than before: ids must stand for whole prefixes"));
        }
        parent = Some(id);
    }
    Ok(Request { arrival_ms: raw.timestamp as u64, input_tokens: raw.input_length, blocks: raw.hash_ids })
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use std::io::Write;

    const TWO: &str = "{\"timestamp\": 0, \"input_length\": 1000, \"output_length\": 5, \"hash_ids\": [1, 2]}\n\n\
                       {\"timestamp\": 7, \"input_length\": 1024, \"output_length\": 5, \"hash_ids\": [1, 3]}";

    fn fails(text: &str, word: &str) {
        let error = parse(text.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains(word), "{error:?} does not say {word:?}");
    }

    #[test]
    fn plain_and_gzip_read_alike() {
        let dir = tempfile::tempdir().unwrap();
        let (plain, packed) = (dir.path().join("t.jsonl"), dir.path().join("t.jsonl.gz"));
        std::fs::write(&plain, TWO).unwrap();
        let mut encoder = flate2::write::GzEncoder::new(File::create(&packed).unwrap(), flate2::Compression::fast());
        encoder.write_all(TWO.as_bytes()).unwrap();
        encoder.finish().unwrap();
        let requests = read(&plain, None).unwrap();
        assert_eq!(requests, read(&packed, None).unwrap());
        assert_eq!(requests.len(), 2);
        assert_eq!(requests[1], Request { arrival_ms: 7, input_tokens: 1024, blocks: vec![1, 3] });
        assert_eq!(read(&plain, Some(1)).unwrap().len(), 1);
    }

    #[test]
    fn the_last_block_is_partial() {
        let request = &parse(TWO.as_bytes(), None).unwrap()[0];
        assert_eq!(request.block_token_counts().collect::<Vec<_>>(), [512, 488]);
        assert_eq!([0, 1, 2].map(|blocks| request.tokens_in(blocks)), [0, 512, 1000]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        fails("", "no request");
        fails(&format!("{TWO}\nnonsense"), "line 4");
        fails("{\"timestamp\":0,\"input_length\":1000,\"hash_ids\":[1]}", "make 2");
        fails("{\"timestamp\":-1,\"input_length\":1,\"hash_ids\":[1]}", "not a time");
        fails("{\"timestamp\":0,\"input_length\":99999999999,\"hash_ids\":[1]}", "over what a lookup can say");
        fails(&format!("{TWO}\n{{\"timestamp\":8,\"input_length\":512,\"hash_ids\":[2]}}"), "follows another block");
        fails(&format!("{TWO}\n{{\"timestamp\":6,\"input_length\":512,\"hash_ids\":[1]}}"), "goes back");
        fails("{\"timestamp\":0,\"input_length\":1024,\"hash_ids\":[1,1]}", "follows another block");
    }
}
