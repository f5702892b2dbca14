//! Which sizes pictures are fitted to, as `check` prints it.

use crate::terminal;
use flow_pipeline::{PictureBuckets, Size};
use serde_json::{Value, json};

/// The sizes from the narrowest to the widest, each with its pictures.
fn sorted(buckets: &PictureBuckets) -> Vec<(Size, u64)> {
    let sizes = buckets.sizes().iter().copied();
    let mut counted: Vec<(Size, u64)> = sizes.zip(buckets.counts()).collect();
    counted.sort_by_key(|(size, _)| (size.width, size.height));
    counted
}

/// The table for people; `batch` is how many pictures a step shows.
pub fn text(buckets: &PictureBuckets, batch: usize) -> String {
    let mut rows = vec![vec!["bucket".to_owned(), "pictures".to_owned()]];
    let counted = sorted(buckets);
    for (size, count) in &counted {
        rows.push(vec![
            format!("{} x {}", size.width, size.height),
            count.to_string(),
        ]);
    }
    let mut text = terminal::table(&rows, 1);
    let small = counted.iter().filter(|(_, count)| *count < batch as u64).count();
    if small > 0 {
        text.push_str(&format!(
            "{small} of {} buckets have fewer pictures than `pretrain.batch` = {batch}: a batch of theirs shows some of them twice\n",
            counted.len()
        ));
    }
    text.push('\n');
    text
}

/// The table for programs; `docs/src/config.md` describes it.
pub fn json(buckets: &PictureBuckets) -> Value {
    let bucket = |(size, pictures): (Size, u64)| json!({ "width": size.width, "height": size.height, "pictures": pictures });
    sorted(buckets).into_iter().map(bucket).collect()
}
