//! Ranks that are processes: a TCP connection between every two.

use crate::frame::Frame;
use crate::ranks::{Event, Link, Ranks};
use flow_rendezvous::{Membership, RendezvousError, Watch};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long whoever connects may take to say who it is.
const GREETING: Duration = Duration::from_secs(10);

/// To another process.
#[derive(Debug)]
struct ToProcess {
    stream: Mutex<TcpStream>,
}

impl Link for ToProcess {
    fn send(&self, frame: &Frame) -> io::Result<()> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = BufWriter::with_capacity(1 << 16, &*stream);
        frame.write(&mut out)?;
        out.flush()
    }

    fn close(&self) {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever is gone already needs no farewell.
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Connects every rank with every other; a wait takes `timeout` at most.
///
/// # Errors
/// If a rank cannot be reached, or does not come in time.
pub fn tcp(mut membership: Membership, timeout: Duration) -> Result<Ranks, RendezvousError> {
    let world = membership.world();
    match connections(&mut membership, timeout) {
        Ok((links, inbox, watch)) => Ok(Ranks::new(world, timeout, links, inbox).within(membership, watch)),
        Err(error) => {
            // The others would wait for this rank. If the store is gone, they see that.
            let _ = membership.abort(&format!("rank {}: {error}", world.rank));
            Err(error)
        }
    }
}

/// Links to the other ranks, what comes from them, and the watch over the run.
type Connections = (Vec<Option<Box<dyn Link>>>, Receiver<(usize, Event)>, Watch);

fn connections(membership: &mut Membership, timeout: Duration) -> Result<Connections, RendezvousError> {
    let world = membership.world();
    let watch = membership.watch()?;
    let own = SocketAddr::new(membership.own_address()?, 0);
    let refused = |error: io::Error| RendezvousError::Listen {
        port: 0,
        problem: error.to_string(),
    };
    let listener = TcpListener::bind(own).map_err(refused)?;
    listener.set_nonblocking(true).map_err(refused)?;
    let address = listener.local_addr().map_err(refused)?;
    // Whoever knows it has read the store: strangers that connect are none of the ranks.
    let token = RandomState::new().build_hasher().finish();
    let places = membership.share("address", format!("{address} {token}").as_bytes())?;

    let mut streams: Vec<Option<TcpStream>> = (0..world.ranks).map(|_| None).collect();
    let patience = membership.patience();
    for (rank, place) in places.iter().enumerate().take(world.rank) {
        let stream = connect(place, world.rank, patience);
        streams[rank] = Some(stream.map_err(|error| unreachable(rank, place, &error))?);
    }
    accept(&listener, token, &mut streams, world.rank, (&watch, patience))?;

    let (sender, inbox) = channel();
    let mut links = Vec::new();
    for (rank, stream) in streams.into_iter().enumerate() {
        links.push(match stream {
            None => None,
            Some(stream) => Some(link(rank, stream, timeout, sender.clone()).map_err(refused)?),
        });
    }
    Ok((links, inbox, watch))
}

fn unreachable(rank: usize, place: &[u8], error: &io::Error) -> RendezvousError {
    let place = String::from_utf8_lossy(place);
    // Behind the address stands the token.
    let place = place.split(' ').next().unwrap_or_default();
    RendezvousError::Unreachable {
        rank,
        place: place.to_owned(),
        problem: error.to_string(),
    }
}

/// Connects to the rank that put up `place`.
fn connect(place: &[u8], own: usize, patience: Duration) -> io::Result<TcpStream> {
    let wrong = || io::Error::other("its address cannot be read");
    let text = str::from_utf8(place).map_err(|_| wrong())?;
    let (address, token) = text.split_once(' ').ok_or_else(wrong)?;
    let address: SocketAddr = address.parse().map_err(|_| wrong())?;
    let token: u64 = token.parse().map_err(|_| wrong())?;
    let mut stream = TcpStream::connect_timeout(&address, patience.max(Duration::from_secs(1)))?;
    stream.write_all(&[token.to_le_bytes(), (own as u64).to_le_bytes()].concat())?;
    Ok(stream)
}

/// Who connects, if it knows the token.
fn greeted(stream: &mut TcpStream, token: u64) -> io::Result<usize> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(GREETING))?;
    let mut greeting = [0; 16];
    stream.read_exact(&mut greeting)?;
    let (theirs, rank) = greeting.split_at(8);
    match theirs == token.to_le_bytes() {
        true => Ok(u64::from_le_bytes(rank.try_into().unwrap_or_default()) as usize),
        false => Err(io::Error::other("a stranger")),
    }
}

/// Waits for the connections of all ranks behind `own`.
fn accept(
    listener: &TcpListener,
    token: u64,
    streams: &mut [Option<TcpStream>],
    own: usize,
    (watch, patience): (&Watch, Duration),
) -> Result<(), RendezvousError> {
    let until = Instant::now() + patience;
    loop {
        let missing: Vec<String> = (own + 1..streams.len())
            .filter(|rank| streams[*rank].is_none())
            .map(|rank| rank.to_string())
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        if let Ok((mut stream, _)) = listener.accept() {
            // A stranger is left.
            if let Ok(rank) = greeted(&mut stream, token)
                && rank > own
                && let Some(place) = streams.get_mut(rank)
            {
                *place = Some(stream);
            }
            continue;
        }
        if let Some(words) = watch.aborted() {
            return Err(RendezvousError::Aborted(words));
        }
        if Instant::now() >= until {
            return Err(RendezvousError::Late {
                what: format!("connections of rank {}", missing.join(", ")),
                seconds: patience.as_secs(),
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A link to a rank, and a thread that takes in what comes from it, so that no rank that sends waits for one that computes.
fn link(
    rank: usize,
    stream: TcpStream,
    timeout: Duration,
    inbox: Sender<(usize, Event)>,
) -> io::Result<Box<dyn Link>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(None)?;
    stream.set_write_timeout(Some(timeout))?;
    let reading = stream.try_clone()?;
    let take = move || {
        let mut reading = BufReader::with_capacity(1 << 16, reading);
        loop {
            let event = match Frame::read(&mut reading) {
                Ok(frame) => Event::Frame(frame),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    Event::Broken("its connection was closed".into())
                }
                Err(error) => Event::Broken(error.to_string()),
            };
            let is_last = matches!(event, Event::Broken(_));
            if inbox.send((rank, event)).is_err() || is_last {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name(format!("from rank {rank}"))
        .spawn(take)?;
    Ok(Box::new(ToProcess {
        stream: Mutex::new(stream),
    }))
}
