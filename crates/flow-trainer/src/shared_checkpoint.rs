//! A checkpoint for processes that do not see the disk of the first one: it is sent to them, and verified there.
//!
//! Nobody has to say whether disks are shared. A process looks where the first one has the file, and in its own folder; by the hash it knows
//! the right one. To whoever has none it is sent in pieces, first to one process of each machine, from whose disk the others of that machine
//! read it, then to those that still have none. All processes make the same exchanges, so whoever has the file hears the pieces, too.

use crate::distributed::gathered;
use crate::error::TrainError;
use flow_exchange::{Exchange, Lost};
use flow_report::{CheckpointReader, ReceivedFile};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a piece: what a process holds of the file at a time.
const PIECE: u64 = 8 << 20;

/// The checkpoint that the first process goes on from.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// Where the first process has it, as the config or the command line says: every process reads these in its own working directory.
    path: String,
    step: u64,
    bytes: u64,
    blake3: String,
}

impl Offer {
    /// Of the checkpoint that was read.
    pub fn of(reader: &CheckpointReader) -> Self {
        Self {
            path: reader.path().to_string_lossy().into_owned(),
            step: reader.step(),
            bytes: reader.bytes(),
            blake3: reader.blake3().to_owned(),
        }
    }

    /// Where the first process has it, relative to a working directory if it was given so.
    pub fn path(&self) -> &Path {
        Path::new(&self.path)
    }

    /// Its step.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The file at `path`, if it is this one.
    fn opened(&self, path: &Path) -> Option<CheckpointReader> {
        // Before all of it is read.
        if path.metadata().ok()?.len() != self.bytes {
            return None;
        }
        let reader = CheckpointReader::open(path).ok()?;
        (reader.blake3() == self.blake3).then_some(reader)
    }
}

/// A checkpoint that this process can read.
struct OwnCopy {
    reader: CheckpointReader,
    /// The file that was received, which others of this machine may open, too.
    received: Option<ReceivedFile>,
}

impl OwnCopy {
    /// The first of `places` where the offered file lies.
    fn found<'a>(mut places: impl Iterator<Item = &'a Path>, offer: &Offer) -> Option<Self> {
        Some(Self {
            reader: places.find_map(|place| offer.opened(place))?,
            received: None,
        })
    }
}

/// How a process stands: whether it has the file, and its number among those of its machine.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Standing {
    has: bool,
    local_rank: usize,
}

impl Standing {
    fn lacks(&self) -> bool {
        !self.has
    }

    fn receives_first(&self) -> bool {
        !self.has && self.local_rank == 0
    }
}

fn standings(exchange: &dyn Exchange, has: bool) -> Result<Vec<Standing>, TrainError> {
    let local_rank = exchange.world().local_rank;
    gathered(exchange, &Standing { has, local_rank })
}

/// By the first process: gives everyone the checkpoint that was offered. Says to how many it was sent.
///
/// # Errors
/// If a process is lost, or cannot keep it.
pub fn give(exchange: &dyn Exchange, reader: &CheckpointReader) -> Result<usize, TrainError> {
    let all = standings(exchange, true)?;
    if !all.iter().any(Standing::lacks) {
        return Ok(0);
    }
    let first = all.iter().filter(|standing| standing.receives_first()).count();
    if first > 0 {
        send(exchange, reader)?;
    }
    gathered::<Option<String>>(exchange, &None)?;
    let all = standings(exchange, true)?;
    let rest = all.iter().filter(|standing| standing.lacks()).count();
    if rest > 0 {
        send(exchange, reader)?;
    }
    Ok(first + rest)
}

/// By every other process: the checkpoint that the first one offers, from one of `places`, or received as `file`. A file that was received
/// is removed when everyone has opened it; its content lasts as long as the reader.
///
/// # Errors
/// If a process is lost, or this one cannot write the file.
pub fn take(
    exchange: &dyn Exchange,
    offer: &Offer,
    places: &[PathBuf],
    file: &Path,
) -> Result<CheckpointReader, TrainError> {
    let rank = exchange.world().rank;
    let mut own = OwnCopy::found(places.iter().map(PathBuf::as_path), offer);
    let all = standings(exchange, own.is_some())?;
    if all.iter().any(Standing::lacks) {
        if all.iter().any(Standing::receives_first) {
            let received = receive(exchange, offer, all[rank].receives_first(), file)?;
            own = own.or(received);
        }
        let received = own.as_ref().and_then(|own| own.received.as_ref());
        let path = received.map(|received| std::path::absolute(received.path()));
        let path = path.and_then(Result::ok);
        let path = path.map(|path| path.to_string_lossy().into_owned());
        let told: Vec<Option<String>> = gathered(exchange, &path)?;
        if own.is_none() {
            own = OwnCopy::found(told.iter().flatten().map(Path::new), offer);
        }
        if standings(exchange, own.is_some())?.iter().any(Standing::lacks) {
            let received = receive(exchange, offer, own.is_none(), file)?;
            own = own.or(received);
        }
    }
    own.map(|own| own.reader).ok_or_else(|| {
        TrainError::setting(format!(
            "process {rank} was not sent the checkpoint `{}`",
            offer.path
        ))
        .with_help("run the same build of flow-train on all machines")
    })
}

fn send(exchange: &dyn Exchange, reader: &CheckpointReader) -> Result<(), TrainError> {
    let mut at = 0;
    while at < reader.bytes() {
        let length = PIECE.min(reader.bytes() - at);
        // Everyone answers, so no piece is sent before the last one is taken.
        exchange.gather(&reader.piece(at, length as usize)?)?;
        at += length;
    }
    Ok(())
}

/// Takes part in the sending; keeps the file if this process `wants` it.
fn receive(
    exchange: &dyn Exchange,
    offer: &Offer,
    wants: bool,
    file: &Path,
) -> Result<Option<OwnCopy>, TrainError> {
    if !wants {
        for_each_piece(exchange, offer, |_| Ok(())).map_err(NotReceived::into_error)?;
        return Ok(None);
    }
    let mut lost = None;
    let written = ReceivedFile::write(file, "checkpoint", |out| {
        match for_each_piece(exchange, offer, |piece| out.write_all(piece)) {
            Ok(()) => Ok(()),
            Err(NotReceived::Disk(error)) => Err(error),
            Err(NotReceived::Lost(why)) => {
                let words = io::Error::other(why.to_string());
                lost = Some(why);
                Err(words)
            }
        }
    });
    if let Some(lost) = lost {
        return Err(lost.into());
    }
    let received = written?;
    let reader = CheckpointReader::open(received.path())?;
    if reader.blake3() != offer.blake3 {
        let path = received.path().to_owned();
        return Err(TrainError::CheckpointMismatch {
            path,
            problem: "it was received with another content than it was sent with".into(),
            help: "Look after the network and the disk of this machine, and resume again".into(),
        });
    }
    Ok(Some(OwnCopy {
        reader,
        received: Some(received),
    }))
}

/// Why a piece was not taken.
enum NotReceived {
    Lost(Lost),
    Disk(io::Error),
}

impl NotReceived {
    /// Of one who writes nothing.
    fn into_error(self) -> TrainError {
        match self {
            Self::Lost(lost) => lost.into(),
            Self::Disk(error) => TrainError::setting(error.to_string()),
        }
    }
}

fn for_each_piece(
    exchange: &dyn Exchange,
    offer: &Offer,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> Result<(), NotReceived> {
    let mut left = offer.bytes;
    while left > 0 {
        let all = exchange.gather(&[]).map_err(NotReceived::Lost)?;
        let (piece, due) = (&all[0], PIECE.min(left));
        if piece.len() as u64 != due {
            return Err(NotReceived::Lost(Lost::OutOfStep {
                rank: 0,
                own: exchange.world().rank,
                problem: format!(
                    "it sends {} bytes of a checkpoint where {due} are due",
                    piece.len()
                ),
            }));
        }
        take(piece).map_err(NotReceived::Disk)?;
        left -= due;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flow_report::CheckpointWriter;
    use std::fs;
    use std::time::Duration;

    /// A checkpoint of more than one piece.
    fn saved(path: &Path) -> CheckpointReader {
        let mut writer = CheckpointWriter::new(7, serde_json::Value::Null);
        let values: Vec<u8> = (0..PIECE as usize + 12_345).map(|index| index as u8).collect();
        writer.section("current/weight", values).expect("a new name");
        writer.write_to(path).expect("a writable folder");
        CheckpointReader::open(path).expect("it was just written")
    }

    #[test]
    fn whoever_does_not_see_the_file_receives_it_whole_and_others_read_it_where_it_is() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let original = root.path().join("step-000007.ckpt");
        let reader = saved(&original);
        let offer = Offer::of(&reader);
        // The second has another file in that place, the third sees the first one's.
        let other = root.path().join("other.ckpt");
        fs::write(&other, fs::read(&original).expect("it is there").split_off(1)).expect("a writable folder");
        let places = [Vec::new(), vec![other], vec![original]];
        let mut exchanges = flow_exchange::in_process(3, Duration::from_secs(20)).into_iter();
        let first = exchanges.next().expect("there are three");
        let received = std::thread::scope(|scope| {
            let others: Vec<_> = (exchanges.zip(&places[1..]).enumerate())
                .map(|(index, (exchange, places))| {
                    let file = root.path().join(format!("received/{index}/checkpoint"));
                    let offer = &offer;
                    scope.spawn(move || take(&*exchange, offer, places, &file).expect("everyone is there"))
                })
                .collect();
            assert_eq!(give(&*first, &reader).expect("everyone is there"), 1);
            others
                .into_iter()
                .map(|copy| copy.join().expect("no panic"))
                .collect::<Vec<_>>()
        });
        let in_received = |copy: &CheckpointReader| copy.path().starts_with(root.path().join("received"));
        let is_received: Vec<bool> = received.iter().map(in_received).collect();
        assert_eq!(is_received, [true, false]);
        for copy in &received {
            assert_eq!(copy.blake3(), reader.blake3());
            let section = copy.section("current/weight").expect("it has one");
            assert_eq!(section, reader.section("current/weight").expect("it has one"));
        }
        // What was received can be read without its name.
        assert!(!root.path().join("received").exists());
    }

    #[test]
    fn a_disk_that_does_not_take_the_file_stops_everyone_with_its_words() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let reader = saved(&root.path().join("step-000007.ckpt"));
        let offer = Offer::of(&reader);
        let file = root.path().join("occupied");
        fs::write(&file, "").expect("a writable folder");
        let mut exchanges = flow_exchange::in_process(2, Duration::from_secs(20)).into_iter();
        let (first, second) = (exchanges.next(), exchanges.next());
        let (first, second) = first.zip(second).expect("there are two");
        std::thread::scope(|scope| {
            let (offer, file) = (&offer, file.join("checkpoint"));
            let failed = scope.spawn(move || {
                let error = take(&*second, offer, &[], &file).expect_err("its folder is a file");
                // As a run does whose rank fails.
                second.abort(&error.to_string());
                error.to_string()
            });
            let stopped = give(&*first, &reader)
                .expect_err("the other one stops")
                .to_string();
            let words = failed.join().expect("no panic");
            assert!(words.contains("occupied"), "{words}");
            assert!(
                stopped.contains("rank 1 stopped") && stopped.contains("occupied"),
                "{stopped}"
            );
        });
    }
}
