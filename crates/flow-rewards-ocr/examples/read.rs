//! Prints the lines that PP-OCR reads in a picture: `read FOLDER PICTURE`, where the folder has its ONNX files.

use flow_data::Image;
use flow_rewards_ocr::{OcrSettings, PaddleReader, ReadRequest, Reader};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(picture)) = (arguments.next(), arguments.next()) else {
        return Err("name the folder of the ONNX files, and a picture".into());
    };
    let reader = PaddleReader::open(&OcrSettings::new(folder))?;
    let rgb = image::open(picture)?.to_rgb8();
    let image = Image::from_rgb8(rgb.height() as usize, rgb.width() as usize, rgb.as_raw())?;
    let request = ReadRequest {
        image: &image,
        letters: &[],
    };
    let lines = reader.read(&[request]).map_err(|error| error.problem)?;
    for line in lines.concat() {
        println!("{:.3}  {}", line.confidence, line.text);
    }
    Ok(())
}
