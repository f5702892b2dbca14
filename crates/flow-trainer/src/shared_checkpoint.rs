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
    /// Where the first process has it.
    path: String,
    step: u64,
    bytes: u64,
    blake3: String,
}

impl Offer {
    /// Of the checkpoint that was read.
    pub fn of(reader: &CheckpointReader) -> Self {
        let path = reader.path();
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Self {
            path: path.to_string_lossy().into_owned(),
            step: reader.step(),
            bytes: reader.bytes(),
            blake3: reader.blake3().to_owned(),
        }
    }

    /// Where the first process has it.
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
#[derive(Debug)]
pub struct OwnCopy {
    /// The file.
    pub reader: CheckpointReader,
    /// The file that was received, which others of this machine may read, too.
    pub received: Option<ReceivedFile>,
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

/// By every other process: the checkpoint that the first one offers, from one of `places`, or received as `file`.
///
/// # Errors
/// If a process is lost, or this one cannot write the file.
pub fn take(
    exchange: &dyn Exchange,
    offer: &Offer,
    places: &[PathBuf],
    file: &Path,
) -> Result<OwnCopy, TrainError> {
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
    own.ok_or_else(|| {
        TrainError::Setting(format!(
            "process {rank} was not sent the checkpoint `{}`; run the same build of flow-train on all machines",
            offer.path
        ))
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
            Self::Disk(error) => TrainError::Setting(error.to_string()),
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
