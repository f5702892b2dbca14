//! A store for launchers that bring none.

use super::{
    ADD, CHECK, GET, MAGIC, NOT_READY, PING, READY, SET, STOP_WAITING, VALIDATE, WAIT, byte, half_word, put,
    take, word,
};
use crate::membership::{ABORT, run_key};
use std::collections::HashMap;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Serves a store until it is dropped, a thread for each client.
#[derive(Debug)]
pub struct StoreServer {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug, Default)]
struct Shared {
    values: Mutex<HashMap<Vec<u8>, Vec<u8>>>,
    changed: Condvar,
    ended: AtomicBool,
    clients: Mutex<Vec<TcpStream>>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StoreServer {
    /// Listens at `place`, of which port 0 is any free one.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn bind(place: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(place)?;
        let address = listener.local_addr()?;
        let shared: Arc<Shared> = Arc::default();
        let serving = shared.clone();
        std::thread::Builder::new()
            .name("store".into())
            .spawn(move || accept(&listener, &serving))?;
        Ok(Self { shared, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the waits of the ranks with `words`, unless one of them has given up before: what a launcher says that has lost a process.
    /// `attempt` is how often it has started the run again.
    pub fn abort(&self, attempt: u64, words: &str) {
        let key = run_key(attempt, ABORT).into_bytes();
        held(&self.shared.values)
            .entry(key)
            .or_insert_with(|| words.as_bytes().to_vec());
        self.shared.changed.notify_all();
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.changed.notify_all();
        for client in held(&self.shared.clients).iter() {
            // Whoever is gone already needs no farewell.
            let _ = client.shutdown(Shutdown::Both);
        }
        // The thread that accepts sees the end with one more client.
        let ip = match self.address.ip() {
            ip if ip.is_unspecified() && ip.is_ipv4() => [127, 0, 0, 1].into(),
            ip if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let place = SocketAddr::new(ip, self.address.port());
        let _ = TcpStream::connect_timeout(&place, Duration::from_millis(200));
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.ended.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        let _ = client.set_nodelay(true);
        if let Ok(known) = client.try_clone() {
            held(&shared.clients).push(known);
        }
        let shared = shared.clone();
        let serve = move || {
            let mut client = client;
            // A client that breaks off, or says what no client says, is left.
            while shared.answer(&mut client).is_ok() {}
            let _ = client.shutdown(Shutdown::Both);
        };
        let _ = std::thread::Builder::new()
            .name("store client".into())
            .spawn(serve);
    }
}

impl Shared {
    /// Answers one query.
    fn answer(&self, client: &mut TcpStream) -> io::Result<()> {
        match byte(client)? {
            VALIDATE => match half_word(client)? {
                MAGIC => Ok(()),
                _ => Err(io::Error::other("no client of a store")),
            },
            PING => {
                let sign = half_word(client)?;
                client.write_all(&sign.to_ne_bytes())
            }
            SET => {
                let (key, value) = (take(client)?, take(client)?);
                held(&self.values).insert(key, value);
                self.changed.notify_all();
                Ok(())
            }
            ADD => {
                let (key, amount) = (take(client)?, word(client)? as i64);
                let sum = self.add(key, amount);
                client.write_all(&sum.to_ne_bytes())
            }
            CHECK => {
                let keys = keys(client)?;
                let values = held(&self.values);
                let all = keys.iter().all(|key| values.contains_key(key));
                drop(values);
                client.write_all(&[if all { READY } else { NOT_READY }])
            }
            WAIT => {
                let keys = keys(client)?;
                let mut values = held(&self.values);
                while !keys.iter().all(|key| values.contains_key(key)) {
                    if self.ended.load(Ordering::SeqCst) {
                        return Err(io::Error::other("the store ends"));
                    }
                    values = self.changed.wait(values).unwrap_or_else(PoisonError::into_inner);
                }
                drop(values);
                client.write_all(&[STOP_WAITING])
            }
            GET => {
                let key = take(client)?;
                let value = held(&self.values).get(&key).cloned();
                let mut message = Vec::new();
                put(&mut message, &value.unwrap_or_default());
                client.write_all(&message)
            }
            other => Err(io::Error::other(format!("query {other} is none of this store's"))),
        }
    }

    /// Numbers are kept as decimal texts, as PyTorch does.
    fn add(&self, key: Vec<u8>, amount: i64) -> i64 {
        let mut values = held(&self.values);
        let before = values.get(&key).and_then(|value| std::str::from_utf8(value).ok());
        let before: i64 = before.and_then(|text| text.parse().ok()).unwrap_or(0);
        let sum = before.wrapping_add(amount);
        values.insert(key, sum.to_string().into_bytes());
        drop(values);
        self.changed.notify_all();
        sum
    }
}

fn keys(client: &mut TcpStream) -> io::Result<Vec<Vec<u8>>> {
    let count = word(client)?;
    if count > 1 << 16 {
        return Err(io::Error::other("too many keys"));
    }
    (0..count).map(|_| take(client)).collect()
}
