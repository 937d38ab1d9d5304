//! How the benchmark and the ranks of any system talk: lines of text over a Unix socket, which reaches into every namespace.
//!
//! A rank connects and says `rank R`. Then it is told, and answers each with one line:
//!
//! - `fill N`: put the values of [`xagg_testbed::exact`] into a vector of N. Answer: `ready`.
//! - `go K`: sum the vector over all ranks, K times. Answer: `BEGIN END`, nanoseconds of CLOCK_MONOTONIC.
//! - `check`: compare what the last single sum gave. Answer: `exact`, or `wrong`.
//! - `count`: how many packets were sent again so far? Answer: that number, or `-` if the system does not count them.
//! - `end`: end. Answer: `-`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use xagg_testbed::exact::{exact_sum, integers};

/// No answer takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The socket that ranks connect to.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

/// All ranks of a system.
pub struct Ranks(Vec<BufReader<UnixStream>>);

/// When a rank has begun and ended, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// Its begin.
    pub begin: u64,
    /// Its end.
    pub end: u64,
}

impl Listener {
    /// A socket in this folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn bind(folder: &Path) -> Result<Self> {
        let path = folder.join("control");
        let socket = UnixListener::bind(&path).with_context(|| format!("cannot make {}", path.display()))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until so many ranks are there; `check` tells whether it is still worth waiting.
    ///
    /// # Errors
    /// That of `check`, or that they did not come in time.
    pub fn accept(&self, workers: usize, mut check: impl FnMut() -> Result<()>) -> Result<Ranks> {
        let deadline = Instant::now() + PATIENCE;
        let mut ranks: Vec<Option<BufReader<UnixStream>>> = (0..workers).map(|_| None).collect();
        while ranks.iter().any(Option::is_none) {
            ensure!(Instant::now() < deadline, "not all ranks have started within {PATIENCE:?}");
            check()?;
            match self.socket.accept() {
                Ok((stream, _)) => {
                    let (rank, reader) = greet(stream)?;
                    *ranks.get_mut(rank).with_context(|| format!("there is no rank {rank}"))? = Some(reader);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Ranks(ranks.into_iter().flatten().collect()))
    }
}

fn greet(stream: UnixStream) -> Result<(usize, BufReader<UnixStream>)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let line = read_line(&mut reader)?;
    let rank = line.strip_prefix("rank ").and_then(|rank| rank.parse().ok());
    Ok((rank.with_context(|| format!("a rank said {line:?}"))?, reader))
}

fn read_line(reader: &mut BufReader<UnixStream>) -> Result<String> {
    let mut line = String::new();
    let len = reader.read_line(&mut line).context("a rank does not answer")?;
    ensure!(len > 0, "a rank has ended");
    Ok(line.trim_end().to_owned())
}

impl Ranks {
    /// Tells all ranks, and gathers their answers.
    fn ask(&mut self, what: &str) -> Result<Vec<String>> {
        for rank in &mut self.0 {
            writeln!(rank.get_mut(), "{what}").with_context(|| format!("a rank does not take `{what}`"))?;
        }
        let answers = self.0.iter_mut().enumerate();
        answers
            .map(|(rank, reader)| read_line(reader).with_context(|| format!("rank {rank}, `{what}`")))
            .collect()
    }

    /// Gives every rank its values.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn fill(&mut self, elements: usize) -> Result<()> {
        self.ask(&format!("fill {elements}")).map(drop)
    }

    /// Has them summed, so often.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn go(&mut self, times: usize) -> Result<Vec<Span>> {
        let answers = self.ask(&format!("go {times}"))?;
        answers
            .iter()
            .map(|answer| Span::parse(answer).with_context(|| format!("a rank answers {answer}")))
            .collect()
    }

    /// Whether every rank has the exact sum.
    ///
    /// # Errors
    /// The ranks that have not.
    pub fn check(&mut self) -> Result<()> {
        let answers = self.ask("check")?;
        let wrong: Vec<usize> = (0..answers.len()).filter(|rank| answers[*rank] != "exact").collect();
        ensure!(wrong.is_empty(), "the sum is wrong at ranks {wrong:?}");
        Ok(())
    }

    /// Packets that were sent again so far, where a system counts them itself.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn count(&mut self) -> Result<Option<u64>> {
        let answers = self.ask("count")?;
        Ok(answers.iter().map(|answer| answer.parse::<u64>().ok()).sum())
    }

    /// Ends them.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub fn end(mut self) -> Result<()> {
        self.ask("end").map(drop)
    }
}

impl Span {
    fn parse(line: &str) -> Option<Self> {
        let (begin, end) = line.split_once(' ')?;
        Some(Self { begin: begin.parse().ok()?, end: end.parse().ok()? })
    }
}

/// From the first rank's begin to the last one's end, in seconds.
#[must_use]
pub fn elapsed(spans: &[Span]) -> f64 {
    let begin = spans.iter().map(|span| span.begin).min().unwrap_or(0);
    let end = spans.iter().map(|span| span.end).max().unwrap_or(begin);
    (end - begin) as f64 / 1e9
}

/// What a rank does for the benchmark.
pub trait Reduce {
    /// Sums the values over all ranks, in place.
    ///
    /// # Errors
    /// Why it cannot.
    fn all_reduce(&mut self, values: &mut Vec<f32>) -> Result<()>;

    /// Packets that were sent again so far, if it knows.
    fn retransmissions(&self) -> Option<u64>;
}

/// A rank at the benchmark's service until it is told to end.
///
/// # Errors
/// What goes wrong on either side.
pub fn serve(control: &Path, rank: u16, workers: u16, mut system: impl Reduce) -> Result<()> {
    let stream =
        UnixStream::connect(control).with_context(|| format!("cannot reach {}", control.display()))?;
    let mut reader = BufReader::new(stream);
    writeln!(reader.get_mut(), "rank {rank}")?;
    let mut values = vec![];
    loop {
        let mut line = String::new();
        ensure!(reader.read_line(&mut line)? > 0, "the benchmark has ended");
        let (word, number) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), "0"));
        let number: usize = number.parse()?;
        let answer = match word {
            "fill" => {
                values = integers(rank, number);
                "ready".to_owned()
            }
            "go" => {
                let begin = now()?;
                for _ in 0..number {
                    system.all_reduce(&mut values)?;
                }
                format!("{begin} {}", now()?)
            }
            "check" if values == exact_sum(workers, values.len()) => "exact".to_owned(),
            "check" => "wrong".to_owned(),
            "count" => system.retransmissions().map_or_else(|| "-".to_owned(), |count| count.to_string()),
            "end" => return Ok(writeln!(reader.get_mut(), "-")?),
            _ => bail!("the benchmark says {line:?}"),
        };
        writeln!(reader.get_mut(), "{answer}")?;
    }
}

fn now() -> Result<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whose sum is what one worker alone has.
    struct Alone;

    impl Reduce for Alone {
        fn all_reduce(&mut self, _: &mut Vec<f32>) -> Result<()> {
            Ok(())
        }

        fn retransmissions(&self) -> Option<u64> {
            Some(3)
        }
    }

    #[test]
    fn a_rank_does_what_it_is_told_and_a_wrong_sum_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = Listener::bind(folder.path()).expect("binds");
        for (workers, is_right) in [(1, true), (2, false)] {
            let path = listener.path().to_owned();
            let rank = std::thread::spawn(move || serve(&path, 0, workers, Alone));
            let mut ranks = listener.accept(1, || Ok(())).expect("comes");
            ranks.fill(100).expect("fills");
            let spans = ranks.go(2).expect("goes");
            assert!(elapsed(&spans) < PATIENCE.as_secs_f64());
            assert_eq!(ranks.check().is_ok(), is_right);
            assert_eq!(ranks.count().expect("answers"), Some(3));
            ranks.end().expect("ends");
            rank.join().expect("does not panic").expect("ends well");
        }
    }

    #[test]
    fn a_rank_that_ends_is_an_error_and_a_system_that_fails_to_start_is_one_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = Listener::bind(folder.path()).expect("binds");
        writeln!(UnixStream::connect(listener.path()).expect("connects"), "rank 0").expect("writes");
        let mut ranks = listener.accept(1, || Ok(())).expect("comes");
        assert!(ranks.fill(1).is_err());
        let error = listener.accept(1, || bail!("no such program")).err().expect("fails").to_string();
        assert_eq!(error, "no such program");
    }
}
