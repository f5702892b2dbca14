//! What PyTorch's TCPStore and its client said to each other: our store gives the same answers, and our client asks the same.
#![cfg(target_endian = "little")]

use flow_rendezvous::{Store, StoreServer};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

/// By `fixtures/record_tcp_store.py`.
const RECORDED: &str = include_str!("fixtures/tcp_store.txt");

/// Whether the client says it, and its bytes, in order.
fn recorded() -> Vec<(bool, Vec<u8>)> {
    let byte = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).expect("digits are ASCII");
        u8::from_str_radix(digits, 16).expect("two hexadecimal digits")
    };
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (side, digits) = line.split_once(' ').expect("a side and its bytes");
            (side == "client", digits.as_bytes().chunks(2).map(byte).collect())
        })
        .collect()
}

#[test]
fn our_store_answers_pytorchs_client_as_pytorchs_store_does() {
    let server = StoreServer::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let mut stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = 0;
    for (is_client, bytes) in recorded() {
        if is_client {
            stream.write_all(&bytes).unwrap();
            continue;
        }
        let mut answer = vec![0; bytes.len()];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, bytes, "answer {answers}");
        answers += 1;
    }
    assert_eq!(answers, 12);
}

/// Plays PyTorch's store to one client until that is gone: gives the recorded answer to what the recorded client said, in order, calls left out or
/// not. How many calls it knew.
fn play(listener: &TcpListener) -> usize {
    let recorded = recorded();
    let (mut stream, _) = listener.accept().unwrap();
    // The greeting: the same but for the number of the process, which comes back.
    let mut greeting = vec![0; recorded[0].1.len()];
    stream.read_exact(&mut greeting).unwrap();
    let (same, number) = greeting.split_at(greeting.len() - 4);
    assert!(recorded[0].1.starts_with(same), "{greeting:?}");
    stream.write_all(number).unwrap();
    let (mut heard, mut buffer, mut from, mut known) = (Vec::new(), [0; 256], 2, 0);
    loop {
        let count = stream.read(&mut buffer).unwrap();
        if count == 0 {
            assert!(heard.is_empty(), "no client of PyTorch says {heard:?}");
            return known;
        }
        heard.extend(&buffer[..count]);
        let is_next = |heard: &[u8], from: usize| {
            let mut rest = recorded.iter().skip(from);
            rest.position(|(is_client, said)| *is_client && heard.starts_with(said))
        };
        while let Some(place) = is_next(&heard, from) {
            let place = from + place;
            heard.drain(..recorded[place].1.len());
            if let Some((false, answer)) = recorded.get(place + 1) {
                stream.write_all(answer).unwrap();
            }
            from = place + 1;
            known += 1;
        }
    }
}

#[test]
fn our_client_asks_pytorchs_store_as_pytorchs_client_does() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let playing = thread::spawn(move || play(&listener));
    let mut store = Store::connect("127.0.0.1", port, PATIENCE).unwrap();
    // PyTorch's puts a stroke before each key.
    let (key, number) = ("/flow-train/0/address/0", "/n");
    store.set(key, b"\x00 value \xff").unwrap();
    assert_eq!(store.add(number, 2).unwrap(), 2);
    assert_eq!(store.add(number, -5).unwrap(), -3);
    assert!(store.has(key).unwrap());
    assert!(!store.has("/missing").unwrap());
    assert_eq!(store.get(key).unwrap(), b"\x00 value \xff");
    assert_eq!(store.get(number).unwrap(), b"-3");
    store.set(key, b"").unwrap();
    assert_eq!(store.get(key).unwrap(), b"");
    drop(store);
    assert_eq!(playing.join().unwrap(), 9);
}
