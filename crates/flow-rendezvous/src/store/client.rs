//! A connection to a store.

use super::{
    ADD, CHECK, GET, MAGIC, NOT_READY, PING, READY, SET, VALIDATE, byte, half_word, put, take, word,
};
use crate::error::RendezvousError;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest pause between two looks at a key that is not there yet.
const PAUSE: Duration = Duration::from_millis(25);

/// How long an answer may take to a question that is answered at once.
const ANSWER: Duration = Duration::from_secs(30);

/// A connection to the store of a run.
#[derive(Debug)]
pub struct Store {
    stream: TcpStream,
    place: SocketAddr,
}

impl Store {
    /// Connects, and tries again until `patience` is over: whoever serves it may start later.
    ///
    /// # Errors
    /// [`RendezvousError::NoStore`] with the last problem.
    pub fn connect(host: &str, port: u16, patience: Duration) -> Result<Self, RendezvousError> {
        let until = Instant::now() + patience;
        loop {
            match Self::try_connect(host, port) {
                Ok(store) => return Ok(store),
                Err(error) if Instant::now() >= until => {
                    return Err(RendezvousError::NoStore {
                        host: host.into(),
                        port,
                        seconds: patience.as_secs(),
                        problem: error.to_string(),
                    });
                }
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }

    fn try_connect(host: &str, port: u16) -> io::Result<Self> {
        let mut last = io::Error::other("the name has no address");
        for place in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&place, Duration::from_secs(2)) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(ANSWER))?;
                    stream.set_write_timeout(Some(ANSWER))?;
                    let mut store = Self { stream, place };
                    store.greet()?;
                    return Ok(store);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Says who speaks, and sees whether a store answers.
    fn greet(&mut self) -> io::Result<()> {
        let mut message = vec![VALIDATE];
        message.extend(MAGIC.to_ne_bytes());
        let sign = std::process::id();
        message.push(PING);
        message.extend(sign.to_ne_bytes());
        self.stream.write_all(&message)?;
        match half_word(&mut self.stream)? == sign {
            true => Ok(()),
            false => Err(io::Error::other("something else than a store answers there")),
        }
    }

    /// The address of this machine by which the store's machine sees it.
    ///
    /// # Errors
    /// If the connection is gone.
    pub fn own_address(&self) -> Result<IpAddr, RendezvousError> {
        self.known(self.stream.local_addr().map(|place| place.ip()))
    }

    fn known<T>(&self, outcome: io::Result<T>) -> Result<T, RendezvousError> {
        outcome.map_err(|error| RendezvousError::StoreLost {
            place: self.place,
            problem: error.to_string(),
        })
    }

    /// Sets `key`.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<(), RendezvousError> {
        let mut message = vec![SET];
        put(&mut message, key.as_bytes());
        put(&mut message, value);
        let sent = self.stream.write_all(&message);
        self.known(sent)
    }

    /// Adds `amount` to the number at `key`, which is 0 at first, and gives the sum.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn add(&mut self, key: &str, amount: i64) -> Result<i64, RendezvousError> {
        let mut message = vec![ADD];
        put(&mut message, key.as_bytes());
        message.extend(amount.to_ne_bytes());
        let answer = (self.stream.write_all(&message)).and_then(|()| word(&mut self.stream));
        Ok(self.known(answer)? as i64)
    }

    /// Whether `key` is there.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn has(&mut self, key: &str) -> Result<bool, RendezvousError> {
        let mut message = vec![CHECK];
        message.extend(1u64.to_ne_bytes());
        put(&mut message, key.as_bytes());
        let answer = (self.stream.write_all(&message)).and_then(|()| byte(&mut self.stream));
        match self.known(answer)? {
            READY => Ok(true),
            NOT_READY => Ok(false),
            other => self.known(Err(io::Error::other(format!(
                "it answers {other} where 0 or 1 is due"
            )))),
        }
    }

    /// The value of `key`, once it is there; `what` says in words what it is. If `abort` is there first, its value is the error.
    ///
    /// # Errors
    /// [`RendezvousError::Late`] when `until` has come, [`RendezvousError::Aborted`], or if the store is gone.
    pub fn wait(
        &mut self,
        key: &str,
        what: &str,
        abort: &str,
        patience: Duration,
    ) -> Result<Vec<u8>, RendezvousError> {
        let until = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            if self.has(key)? {
                return self.get(key);
            }
            if self.has(abort)? {
                let words = self.get(abort)?;
                return Err(RendezvousError::Aborted(
                    String::from_utf8_lossy(&words).into_owned(),
                ));
            }
            if Instant::now() >= until {
                return Err(RendezvousError::Late {
                    what: what.into(),
                    seconds: patience.as_secs(),
                });
            }
            // Asked again rather than waited for: a wait that is over in vain would leave its answer in the connection.
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE);
        }
    }

    /// The value of a key that is there.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn get(&mut self, key: &str) -> Result<Vec<u8>, RendezvousError> {
        let mut message = vec![GET];
        put(&mut message, key.as_bytes());
        let answer = (self.stream.write_all(&message)).and_then(|()| take(&mut self.stream));
        self.known(answer)
    }
}
