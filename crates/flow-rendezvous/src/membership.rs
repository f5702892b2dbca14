//! A process that has joined its run.

use crate::error::RendezvousError;
use crate::launch::Launch;
use crate::store::{Store, StoreServer};
use crate::watch::Watch;
use crate::world::World;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// The key of why a rank gave up.
pub(crate) const ABORT: &str = "abort";

/// `key` among those of the `attempt`th restart of a run.
pub(crate) fn run_key(attempt: u64, key: &str) -> String {
    format!("flow-train/{attempt}/{key}")
}

/// A process that has joined its run: its place, and the run's store. While rank 0 lives it serves the store, unless the launcher does.
#[derive(Debug)]
pub struct Membership {
    world: World,
    launch: Launch,
    store: Store,
    patience: Duration,
    /// Dropped last: others may still look at it.
    _server: Option<StoreServer>,
}

impl Membership {
    /// Meets the other ranks; each of the waits takes `patience` at most.
    ///
    /// # Errors
    /// Whatever keeps the ranks apart.
    pub fn join(launch: Launch, patience: Duration) -> Result<Self, RendezvousError> {
        let place = &launch.store;
        let server = (place.own && launch.rank == 0)
            .then(|| serve(&place.host, place.port))
            .transpose()?;
        let store = Store::connect(&place.host, place.port, patience)?;
        let world = World {
            rank: launch.rank,
            ranks: launch.ranks,
            local_rank: launch.local_rank,
            local_ranks: launch.local_ranks.unwrap_or(1),
            attempt: launch.attempt,
        };
        let mut joined = Self {
            world,
            launch,
            store,
            patience,
            _server: server,
        };
        if joined.launch.local_ranks.is_none() {
            joined.count_neighbours()?;
        }
        Ok(joined)
    }

    /// Counts the ranks of this machine, which the launcher did not say.
    fn count_neighbours(&mut self) -> Result<(), RendezvousError> {
        let own = machine_name();
        let names = self.share("machine", own.as_bytes())?;
        let same = names.iter().filter(|name| **name == own.as_bytes());
        self.world.local_ranks = same.count().max(self.world.local_rank + 1);
        Ok(())
    }

    /// This process's place.
    pub fn world(&self) -> World {
        self.world
    }

    /// What the launcher said.
    pub fn launch(&self) -> &Launch {
        &self.launch
    }

    /// How long a wait takes at most.
    pub fn patience(&self) -> Duration {
        self.patience
    }

    /// The address of this machine by which rank 0's sees it.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn own_address(&self) -> Result<IpAddr, RendezvousError> {
        self.store.own_address()
    }

    /// `key` among those of this attempt.
    fn key(&self, key: &str) -> String {
        run_key(self.world.attempt, key)
    }

    /// Puts `value` up as this rank's `what` and gives that of every rank, in order.
    ///
    /// # Errors
    /// If one does not come in time, a rank has given up, or the store is gone.
    pub fn share(&mut self, what: &str, value: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let of = |joined: &Self, rank: usize| joined.key(&format!("{what}/{rank}"));
        let own = of(self, self.world.rank);
        self.store.set(&own, value)?;
        let abort = self.key(ABORT);
        (0..self.world.ranks)
            .map(|rank| {
                let words = format!("rank {rank} of {} ({what})", self.world.ranks);
                let key = of(self, rank);
                self.store.wait(&key, &words, &abort, self.patience)
            })
            .collect()
    }

    /// Tells every rank that this one gives up, and why.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn abort(&mut self, words: &str) -> Result<(), RendezvousError> {
        let key = self.key(ABORT);
        // The first one counts: others end because of it.
        if self.store.has(&key)? {
            return Ok(());
        }
        self.store.set(&key, words.as_bytes())
    }

    /// Watches over the key `abort` and the store itself from now on, by a connection of its own.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn watch(&self) -> Result<Watch, RendezvousError> {
        let place = &self.launch.store;
        let store = Store::connect(&place.host, place.port, self.patience)?;
        Ok(Watch::start(store, self.key(ABORT)))
    }
}

/// Serves a store at `port` for all machines, or for this one only if `host` is this one's own address.
fn serve(host: &str, port: u16) -> Result<StoreServer, RendezvousError> {
    let is_own = host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback() && ip.is_ipv4());
    let ip = if is_own {
        Ipv4Addr::LOCALHOST
    } else {
        Ipv4Addr::UNSPECIFIED
    };
    StoreServer::bind(SocketAddr::new(ip.into(), port)).map_err(|error| RendezvousError::Listen {
        port,
        problem: error.to_string(),
    })
}

/// A name of this machine that its neighbours do not have.
fn machine_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let name = name.ok().or_else(|| std::env::var("HOSTNAME").ok());
    name.map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "this machine".into())
}
