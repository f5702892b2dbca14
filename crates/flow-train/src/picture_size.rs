//! Sizes of pictures on the command line.

/// Width and height in pixels: `1024x768`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSize {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
}

impl PictureSize {
    /// Reads `1024x768`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no size; write width and height in pixels as 1024x768");
        let (width, height) = text.split_once(['x', 'X', '×']).ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| wrong());
        Ok(Self {
            width: number(width)?,
            height: number(height)?,
        })
    }
}
