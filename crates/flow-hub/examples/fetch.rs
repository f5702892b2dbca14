//! Fetches a model: `cargo run --release -p flow-hub --example fetch -- ORGANISATION/NAME FOLDER`

use flow_hub::{Fetch, HttpClient, Hub, Settings};
use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [repository, folder] = arguments.as_slice() else {
        return Err("name a repository, such as `organisation/name`, and a folder".into());
    };
    let hub = Hub::new(HttpClient::direct(), Settings::new("https://huggingface.co")?);
    let wanted = Fetch {
        repository,
        revision: None,
        variant: None,
        folder: Path::new(folder),
    };
    let mut last = String::new();
    let fetched = hub.fetch(&wanted, &mut |progress| {
        if progress.file != last {
            last = progress.file.to_owned();
            println!("{} of {}  {last}", progress.file_number, progress.files);
        }
    })?;
    println!("commit {}, {} bytes", fetched.commit, fetched.size_bytes);
    Ok(())
}
