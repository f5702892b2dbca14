//! PyTorch's TCPStore: keys and values that the processes of a run share.
//!
//! A client sends a query (one byte) and its arguments; whole numbers are in the machine's own order of bytes, and texts and values have
//! their length before them, as u64. Each connection begins with [`VALIDATE`] and [`MAGIC`]. As in
//! `torch/csrc/distributed/c10d/TCPStoreBackend.hpp` and `TCPStore.cpp` of PyTorch 2.

mod client;
mod server;

pub use client::Store;
pub use server::StoreServer;

use std::io::{self, Read};

/// Checks that a client means a store; no answer.
const VALIDATE: u8 = 0;
/// Sets a key; no answer.
const SET: u8 = 1;
/// The value of a key that is there.
const GET: u8 = 3;
/// Adds to the number at a key, which is 0 before; the sum.
const ADD: u8 = 4;
/// Whether all of some keys are there: [`READY`] or [`NOT_READY`].
const CHECK: u8 = 5;
/// Answers [`STOP_WAITING`] once all of some keys are there.
const WAIT: u8 = 6;
/// A number, which comes back.
const PING: u8 = 13;

/// What a client begins with.
const MAGIC: u32 = 0x3C85_F7CE;
const READY: u8 = 0;
const NOT_READY: u8 = 1;
const STOP_WAITING: u8 = 0;

/// No key and no value of ours is longer; a length above it is no store's.
const LONGEST: u64 = 1 << 26;

fn put(message: &mut Vec<u8>, value: &[u8]) {
    message.extend((value.len() as u64).to_ne_bytes());
    message.extend(value);
}

fn byte(from: &mut impl Read) -> io::Result<u8> {
    let mut bytes = [0];
    from.read_exact(&mut bytes)?;
    Ok(bytes[0])
}

fn word(from: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

fn half_word(from: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes)?;
    Ok(u32::from_ne_bytes(bytes))
}

fn take(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = word(from)?;
    if length > LONGEST {
        return Err(io::Error::other(format!(
            "a value of {length} bytes is announced: this is no store"
        )));
    }
    let mut value = vec![0; length as usize];
    from.read_exact(&mut value)?;
    Ok(value)
}
