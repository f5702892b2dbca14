//! A hub on this machine: the interface of Hugging Face's, over loopback, with the faults that a test asks for.
//!
//! Two servers listen. The hub answers `/api/models/…` and `/…/resolve/…`; files of Git LFS lie in the store, to which the hub
//! redirects, as the real one does.

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

/// The repository that the hub has.
pub const REPOSITORY: &str = "organisation/small-model";
/// The commit that its `main` is.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A request that one of the servers got.
#[derive(Clone, Debug)]
pub struct Received {
    /// Whether the store got it, and not the hub.
    pub by_store: bool,
    /// Path and query.
    pub target: String,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The header `Range`.
    pub range: Option<String>,
}

/// What the hub has, and how it misbehaves. What is cut, damaged or refused is used up by the requests that meet it.
#[derive(Debug, Default)]
pub struct Behaviour {
    /// Path, content, and whether it is a file of Git LFS.
    pub files: BTreeMap<String, (Vec<u8>, bool)>,
    /// Without this token, 401.
    pub token: Option<String>,
    /// Whoever has the token has not accepted the licence: 403.
    pub is_gated: bool,
    /// Entries on a page of the list; 0 for one page.
    pub page_length: usize,
    /// Answers with content of a path that end after so many bytes of it.
    pub cuts: Vec<(String, usize)>,
    /// Paths whose next answer has another content of the same length.
    pub damaged: Vec<String>,
    /// Statuses of the next answers of the hub; 0 stands for the right answer.
    pub statuses: VecDeque<u16>,
    /// As `statuses`, of the store.
    pub store_statuses: VecDeque<u16>,
    /// Requests for a part get the whole.
    pub ignores_ranges: bool,
    /// Where every request for a file is redirected to.
    pub redirect: Option<String>,
    /// What was asked for.
    pub received: Vec<Received>,
}

/// The two servers. Their threads end with the process.
pub struct HubServer {
    /// The hub's address, for `HF_ENDPOINT`.
    pub endpoint: String,
    state: Arc<Mutex<Behaviour>>,
}

impl HubServer {
    /// Starts a hub with `files`: path, content, and whether it is a file of Git LFS.
    ///
    /// # Panics
    /// If loopback cannot be listened to.
    pub fn start(files: &[(&str, &[u8], bool)]) -> Self {
        let state = Behaviour {
            files: files
                .iter()
                .map(|(path, content, is_lfs)| ((*path).to_owned(), (content.to_vec(), *is_lfs)))
                .collect(),
            ..Behaviour::default()
        };
        let state = Arc::new(Mutex::new(state));
        let store = listen(state.clone(), None);
        let endpoint = listen(state.clone(), Some(store));
        Self { endpoint, state }
    }

    /// The hub's state, to be changed or looked at.
    ///
    /// # Panics
    /// If a test panicked while it had it.
    pub fn state(&self) -> MutexGuard<'_, Behaviour> {
        self.state.lock().expect("no test panicked with the state")
    }

    /// Requests for content so far: the path asked for, and the header `Range`.
    pub fn content_requests(&self, path: &str) -> Vec<Option<String>> {
        let state = self.state();
        let of_path = |it: &&Received| it.target.split('?').next().is_some_and(|it| it.ends_with(path));
        let is_lfs = state.files.get(path).is_some_and(|(_, is_lfs)| *is_lfs);
        let content = state.received.iter().filter(of_path);
        content
            .filter(|it| it.by_store == is_lfs)
            .map(|it| it.range.clone())
            .collect()
    }
}

/// Serves on a free port and gives the address. `store` is where the hub has its files of LFS; the store itself has none.
fn listen(state: Arc<Mutex<Behaviour>>, store: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened to");
    let address = listener.local_addr().expect("a listener has an address");
    let url = format!("http://{address}");
    let own = url.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, store, own) = (state.clone(), store.clone(), own.clone());
            thread::spawn(move || {
                // A client that goes away is no fault of the server's.
                let _ = serve(stream, &state, store.as_deref(), &own);
            });
        }
    });
    url
}

/// What is answered.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent before the connection ends.
    sent: usize,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            status,
            headers: Vec::new(),
            sent: body.len(),
            body,
        }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

fn serve(stream: TcpStream, state: &Mutex<Behaviour>, store: Option<&str>, own: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut received = Received {
        by_store: store.is_none(),
        target,
        authorization: None,
        range: None,
    };
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "authorization" => received.authorization = value,
            "range" => received.range = value,
            _ => {}
        }
    }
    let answer = {
        let mut state = state.lock().expect("no test panicked with the state");
        state.received.push(received.clone());
        match store {
            Some(store) => hub(&mut state, &received, store, own),
            None => content_of_store(&mut state, &received),
        }
    };
    let mut out = stream;
    write!(out, "HTTP/1.1 {} -\r\nConnection: close\r\n", answer.status)?;
    write!(out, "Content-Length: {}\r\n", answer.body.len())?;
    for (name, value) in &answer.headers {
        write!(out, "{name}: {value}\r\n")?;
    }
    out.write_all(b"\r\n")?;
    out.write_all(&answer.body[..answer.sent])?;
    out.flush()
}

/// The hub's answer.
fn hub(state: &mut Behaviour, received: &Received, store: &str, own: &str) -> Answer {
    if let Some(status) = state.statuses.pop_front().filter(|it| *it != 0) {
        return Answer::new(status, "").with("Retry-After", "0");
    }
    let (path, query) = received.target.split_once('?').unwrap_or((&received.target, ""));
    let authorized = state
        .token
        .as_ref()
        .is_none_or(|token| received.authorization.as_deref() == Some(&format!("Bearer {token}")));
    let rest = |prefix: String| path.strip_prefix(&prefix).map(str::to_owned);
    let is_repository = path.contains(&format!("/{REPOSITORY}/"));
    if !authorized {
        return Answer::new(401, "").with("X-Error-Message", "Invalid username or password.");
    }
    if !is_repository {
        return Answer::new(404, "").with("X-Error-Code", "RepoNotFound");
    }
    if let Some(revision) = rest(format!("/api/models/{REPOSITORY}/revision/")) {
        if revision != "main" && revision != COMMIT && revision != "refs%2Fpr%2F1" {
            return Answer::new(404, "").with("X-Error-Code", "RevisionNotFound");
        }
        return Answer::new(200, json!({"id": REPOSITORY, "sha": COMMIT}).to_string());
    }
    if rest(format!("/api/models/{REPOSITORY}/tree/{COMMIT}")).is_some() {
        return tree(state, query, own);
    }
    let Some(file) = rest(format!("/{REPOSITORY}/resolve/{COMMIT}/")) else {
        return Answer::new(404, "").with("X-Error-Code", "RevisionNotFound");
    };
    if state.is_gated {
        return Answer::new(403, "")
            .with("X-Error-Code", "GatedRepo")
            .with("X-Error-Message", "Access to this model is restricted.");
    }
    if let Some(to) = &state.redirect {
        return Answer::new(302, "").with("Location", to.clone());
    }
    match state.files.get(&file).map(|(_, is_lfs)| *is_lfs) {
        Some(true) => {
            let signed = format!("{store}/store/{file}?signature=secret");
            Answer::new(302, "moved").with("Location", signed)
        }
        Some(false) => content(state, &file, received),
        None => Answer::new(404, "").with("X-Error-Code", "EntryNotFound"),
    }
}

/// A page of the list of files.
fn tree(state: &Behaviour, query: &str, own: &str) -> Answer {
    let mut entries = vec![json!({"type": "directory", "oid": "00", "size": 0, "path": "a-folder"})];
    entries.extend(state.files.iter().map(|(path, (content, is_lfs))| {
        let size = content.len();
        if *is_lfs {
            let oid = hex(&Sha256::digest(content));
            let pointer = git_blob(format!("pointer of {oid}").as_bytes());
            json!({"type": "file", "oid": pointer, "size": size, "path": path, "lfs": {"oid": oid, "size": size, "pointerSize": 134}})
        } else {
            json!({"type": "file", "oid": git_blob(content), "size": size, "path": path})
        }
    }));
    let cursor = query.split('&').find_map(|it| it.strip_prefix("cursor="));
    let start: usize = cursor.and_then(|it| it.parse().ok()).unwrap_or(0);
    let length = match state.page_length {
        0 => entries.len(),
        length => length,
    };
    let end = (start + length).min(entries.len());
    let page = Answer::new(
        200,
        serde_json::Value::from(entries[start..end].to_vec()).to_string(),
    );
    if end == entries.len() {
        return page;
    }
    let next = format!("{own}/api/models/{REPOSITORY}/tree/{COMMIT}?recursive=true&cursor={end}");
    page.with("Link", format!("<{next}>; rel=\"next\""))
}

/// The store's answer.
fn content_of_store(state: &mut Behaviour, received: &Received) -> Answer {
    if let Some(status) = state.store_statuses.pop_front().filter(|it| *it != 0) {
        return Answer::new(status, "");
    }
    let path = received.target.split('?').next().unwrap_or_default();
    let file = path.strip_prefix("/store/").unwrap_or_default().to_owned();
    content(state, &file, received)
}

/// A file's content, or a part of it, with what is wrong with it.
fn content(state: &mut Behaviour, file: &str, received: &Received) -> Answer {
    let Some((content, _)) = state.files.get(file) else {
        return Answer::new(404, "");
    };
    let mut content = content.clone();
    if let Some(at) = state.damaged.iter().position(|it| it == file) {
        state.damaged.remove(at);
        content.iter_mut().for_each(|byte| *byte ^= 1);
    }
    let range = received.range.as_deref().filter(|_| !state.ignores_ranges);
    let start = range
        .and_then(|it| it.strip_prefix("bytes="))
        .and_then(|it| it.strip_suffix('-'))
        .and_then(|it| it.parse::<usize>().ok());
    let mut answer = match start {
        Some(start) if start >= content.len() => Answer::new(416, ""),
        Some(start) => {
            let (last, size) = (content.len() - 1, content.len());
            Answer::new(206, &content[start..]).with("Content-Range", format!("bytes {start}-{last}/{size}"))
        }
        None => Answer::new(200, content),
    };
    if let Some(at) = state.cuts.iter().position(|(it, _)| it == file) {
        answer.sent = state.cuts.remove(at).1.min(answer.sent);
    }
    answer
}

/// The name of a blob in Git.
fn git_blob(content: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
