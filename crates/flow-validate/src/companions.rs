//! The models beside the one that is trained, of a diffusers folder, of folders of their own and of rewards, as data.

/// A model that is not trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Companion {
    /// Its component: `text_encoder_3`.
    pub name: String,
    /// Its class: `T5EncoderModel`.
    pub class: String,
    /// Its weights.
    pub values: usize,
    /// Bytes of its files.
    pub file_bytes: usize,
    /// Values that one of its blocks makes of what it is given at once, about what is there beside the weights; 0 of an autoencoder,
    /// which has an estimate of its own.
    pub passing: usize,
}

/// What is in memory beside the model that is trained, at some time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Companions {
    /// Text encoders, in the order in which they are loaded; each is dropped before the next.
    pub encoders: Vec<Companion>,
    /// The autoencoder, which stays.
    pub autoencoder: Option<Companion>,
    /// Networks of rewards that compute on the device of the run, which stay.
    pub rewards: Vec<Companion>,
    /// About what the autoencoder takes while it decodes, in bytes.
    pub decoding_bytes: f64,
}
