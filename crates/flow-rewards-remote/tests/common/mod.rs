//! Samples whose brightness is known, and a reward server over loopback that misbehaves as a test asks.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flow_data::{Image, ImageShape, Prompt};
use flow_rewards::RewardSample;
use serde_json::{Value, json};

/// An image with its prompt, or a video.
pub struct Made {
    pub image: Image,
    pub frames: Vec<Image>,
    pub prompt: Prompt,
}

impl Made {
    pub fn sample(&self) -> RewardSample<'_> {
        RewardSample {
            image: &self.image,
            frames: &self.frames,
            prompt: &self.prompt,
        }
    }

    /// The mean of the bytes, divided by 255, from the pixels themselves; of a video, the mean of its frames.
    pub fn brightness(&self) -> f32 {
        let frames: &[Image] = if self.frames.is_empty() {
            std::slice::from_ref(&self.image)
        } else {
            &self.frames
        };
        let sum: f64 = frames.iter().map(brightness).sum();
        (sum / frames.len() as f64) as f32
    }
}

fn brightness(image: &Image) -> f64 {
    // Of a grey image each value counts three times.
    let repeats = 3 / image.channels as u64;
    let byte = |value: &f32| ((f64::from(*value).clamp(-1.0, 1.0) + 1.0) * 127.5).round() as u64;
    let sum: u64 = image.pixels_chw.iter().map(byte).sum::<u64>() * repeats;
    sum as f64 / (image.pixels_chw.len() as u64 * repeats) as f64 / 255.0
}

fn image(channels: usize, height: usize, width: usize, seed: usize) -> Image {
    let shape = ImageShape {
        channels,
        height,
        width,
    };
    // From -1.1 to 1.1, so that some values are clamped.
    let value = |at: usize| ((at * 37 + seed * 101) % 223) as f32 / 101.0 - 1.1;
    Image::new(shape, (0..shape.len()).map(value).collect()).expect("as many values as the shape has")
}

/// `count` images of odd sizes, grey and coloured.
pub fn images(count: usize) -> Vec<Made> {
    let made = |seed: usize| {
        let channels = if seed.is_multiple_of(3) { 1 } else { 3 };
        let mut prompt = Prompt::free(seed as u32, format!("a \"square\" no. {seed}\nwith an é"));
        prompt.metadata.insert("count".into(), json!(seed));
        Made {
            image: image(channels, 5 + seed % 4, 7 + seed % 3, seed),
            frames: vec![],
            prompt,
        }
    };
    (0..count).map(made).collect()
}

/// A video of `frames` frames.
pub fn video(frames: usize, seed: usize) -> Made {
    let frames: Vec<Image> = (0..frames)
        .map(|frame| image(3, 6, 9, seed + 5 * frame))
        .collect();
    Made {
        image: frames[0].clone(),
        frames,
        prompt: Prompt::free(seed as u32, "moving"),
    }
}

pub fn samples(made: &[Made]) -> Vec<RewardSample<'_>> {
    made.iter().map(Made::sample).collect()
}

pub fn brightnesses(made: &[Made]) -> Vec<f32> {
    made.iter().map(Made::brightness).collect()
}

/// A request that the server got.
#[derive(Clone, Debug)]
pub struct Received {
    pub path: String,
    pub authorization: Option<String>,
    pub body: Value,
}

impl Received {
    /// The right answer: the brightness of what the PNG files show.
    pub fn scores(&self) -> Vec<f64> {
        let one = |png: &Value| {
            let png = STANDARD.decode(png.as_str().expect("base64")).expect("base64");
            let bytes = image::load_from_memory(&png)
                .expect("a PNG file")
                .to_rgb8()
                .into_raw();
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>() as f64 / bytes.len() as f64 / 255.0
        };
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        if self.body["video"].is_null() {
            return list(&self.body["image"]).iter().map(one).collect();
        }
        let mean = |frames: &Value| {
            let frames = list(frames);
            frames.iter().map(one).sum::<f64>() / frames.len() as f64
        };
        list(&self.body["video"]).iter().map(mean).collect()
    }
}

/// What the server does with a request.
pub enum Reply {
    /// An answer with this status, these headers and this body.
    Whole(u16, &'static str, String),
    /// The first bytes of an answer with this body, which say how long it is.
    Cut(String, usize),
    /// Nothing, for so long.
    Silence(Duration),
    /// The connection is closed.
    Close,
}

impl Reply {
    pub fn ok(body: impl ToString) -> Self {
        Self::Whole(200, "", body.to_string())
    }

    pub fn right(received: &Received) -> Self {
        Self::ok(json!({ "rewards": received.scores() }))
    }
}

type Answer = dyn FnMut(&Received) -> Reply + Send;

/// A server whose threads end with the process.
pub struct Server {
    pub url: String,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    /// A server whose `/health` is well, and whose `/compute` is answered by `compute`.
    pub fn healthy(mut compute: impl FnMut(&Received) -> Reply + Send + 'static) -> Self {
        Self::start(move |received| match received.path.as_str() {
            "/health" => Reply::ok(json!({ "status": "ok" })),
            _ => compute(received),
        })
    }

    pub fn start(answer: impl FnMut(&Received) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback can be listened to");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let received = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&received);
        let answer: Arc<Mutex<Box<Answer>>> = Arc::new(Mutex::new(Box::new(answer)));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || {
                    // A client that goes away is no fault of the server's.
                    let _ = serve(stream, &kept, &answer);
                });
            }
        });
        Self { url, received }
    }

    pub fn received(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().expect("no thread panicked with it")
    }

    /// How often `path` was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.received().iter().filter(|it| it.path == path).count()
    }
}

fn serve(stream: TcpStream, kept: &Mutex<Vec<Received>>, answer: &Mutex<Box<Answer>>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().expect("a length"),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let received = Received {
        path,
        authorization,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    kept.lock()
        .expect("no thread panicked with it")
        .push(received.clone());
    let reply = (answer.lock().expect("no thread panicked with it"))(&received);
    let mut out = stream;
    match reply {
        Reply::Whole(status, headers, body) => {
            write!(
                out,
                "HTTP/1.1 {status} -\r\nContent-Length: {}\r\n{headers}\r\n{body}",
                body.len()
            )?;
        }
        Reply::Cut(body, sent) => {
            write!(
                out,
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
                body.len(),
                &body[..sent]
            )?;
        }
        Reply::Silence(time) => thread::sleep(time),
        Reply::Close => {}
    }
    out.flush()
}
