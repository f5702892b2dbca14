//! Why processes do not come together.

use std::net::SocketAddr;

/// Why the processes of a run do not come together. Each message says what to set or to look at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// A launcher sets several variables, and one is not there.
    #[error("{found} is set and {missing} is not. {help}")]
    Missing {
        /// One that is there, with its value.
        found: String,
        /// The one that is not.
        missing: &'static str,
        /// Who must set it.
        help: String,
    },
    /// A variable that cannot be read, or contradicts another.
    #[error("{variable}={value}: {problem}")]
    Variable {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What is wrong and what it must be.
        problem: String,
    },
    /// The store cannot listen.
    #[error(
        "rank 0 cannot listen on port {port} for the other ranks: {problem}. Set MASTER_PORT to a free port, the same for all ranks"
    )]
    Listen {
        /// The port.
        port: u16,
        /// Why not.
        problem: String,
    },
    /// No store answers.
    #[error(
        "no store answers at {host}:{port} after {seconds} s: {problem}. Rank 0 listens there once it has started: see whether it \
         has, whether MASTER_ADDR is its machine, and whether a firewall lets MASTER_PORT through"
    )]
    NoStore {
        /// Of `MASTER_ADDR`.
        host: String,
        /// Of `MASTER_PORT`.
        port: u16,
        /// How long was tried.
        seconds: u64,
        /// The last problem.
        problem: String,
    },
    /// The store broke off.
    #[error(
        "the store of the run at {place} is gone: {problem}. The process that serves it (torchrun, or rank 0) has probably ended"
    )]
    StoreLost {
        /// Where it was.
        place: SocketAddr,
        /// What happened.
        problem: String,
    },
    /// Nobody set a key in time.
    #[error("{what} did not come within {seconds} s; see the output of the ranks that are missing")]
    Late {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
    },
    /// A rank that has said where it is, and is not there.
    #[error(
        "rank {rank} does not answer at {place}, where it said that it is: {problem}. It has ended since, see its own output, or a \
         firewall is between the machines"
    )]
    Unreachable {
        /// Which.
        rank: usize,
        /// Where.
        place: String,
        /// What the operating system says.
        problem: String,
    },
    /// Another rank gave up first.
    #[error("{0}")]
    Aborted(String),
}
