//! A case on a device: its operands, and room for what forward and backward write.

use super::case::Case;
use super::data::{Data, Operand};
use super::reference::Results;
use crate::Element;
use crate::portable::{KeyValues, Statistics};
use crate::tensors::Heads;
use cubecl::prelude::*;

/// Operands of a case, uploaded, and results, full of NaN.
#[derive(Clone, Debug)]
pub struct Buffers {
    /// Queries.
    pub q: Heads,
    /// Keys and values of each segment that has any.
    pub kv_segments: Vec<KeyValues>,
    /// Gradient of the result.
    pub d_o: Heads,
    /// Room for the result.
    pub o: Heads,
    /// Room for the log-sum-exp.
    pub lse: Statistics,
    /// Room for the sums of `o · d_o`.
    pub delta: Statistics,
    /// Room for the gradient of queries.
    pub dq: Heads,
    /// Room for the gradients of keys and values of each segment that has any.
    pub gradients: Vec<KeyValues>,
}

fn upload(client: &Client, element: Element, operand: &Operand, memory: &[f64]) -> Heads {
    let handle = client.create_from_slice(&element.encode(memory));
    Heads {
        handle,
        shape: operand.shape,
        strides: operand.strides,
    }
}

impl Buffers {
    /// Uploads a case. Statistics get `rows` rows for each head, at least as many as there are queries.
    pub fn new(client: &Client, case: &Case, data: &Data, rows: usize) -> Self {
        let given = |operand: &Operand| upload(client, case.element, operand, &operand.memory());
        let wanted = |operand: &Operand| upload(client, case.element, operand, &operand.poison());
        let pairs = |make: &dyn Fn(&Operand) -> Heads| {
            let filled = (0..2).filter(|&i| case.kv_segments[i] > 0);
            filled
                .map(|i| KeyValues {
                    k: make(&data.k[i]),
                    v: make(&data.v[i]),
                })
                .collect()
        };
        let statistics = || {
            let poison = vec![f32::NAN; case.batch * case.heads * rows];
            Statistics {
                handle: client.create_from_slice(f32::as_bytes(&poison)),
                rows,
            }
        };
        Self {
            q: given(&data.q),
            kv_segments: pairs(&given),
            d_o: given(&data.d_o),
            o: wanted(&data.q),
            lse: statistics(),
            delta: statistics(),
            dq: wanted(&data.q),
            gradients: pairs(&wanted),
        }
    }

    /// The bytes of everything that was written, for comparison between runs: `o`, `lse`, `dq`, then `dk` and `dv` of
    /// each segment that has any.
    ///
    /// # Errors
    /// What the device said.
    pub fn bytes(&self, client: &Client) -> Result<Vec<Vec<u8>>, String> {
        let mut handles = vec![&self.o.handle, &self.lse.handle, &self.dq.handle];
        handles.extend(
            self.gradients
                .iter()
                .flat_map(|pair| [&pair.k.handle, &pair.v.handle]),
        );
        let read = |handle: &_| client.read_one(Clone::clone(handle)).map(|bytes| bytes.to_vec());
        handles
            .into_iter()
            .map(read)
            .collect::<Result<_, _>>()
            .map_err(|error| format!("{error:?}"))
    }

    /// Results in logical order, from [`Buffers::bytes`].
    ///
    /// # Errors
    /// Where something was written that is no element of a result. Rows of `lse` behind the last query are not looked
    /// at.
    pub fn results(&self, case: &Case, data: &Data, bytes: &[Vec<u8>]) -> Result<Results, String> {
        let tensor = |i: usize, like: &Operand| like.read(&case.element.decode(&bytes[i]));
        let mut results = Results {
            o: tensor(0, &data.q)?,
            lse: Vec::new(),
            dq: tensor(2, &data.q)?,
            dk: Default::default(),
            dv: Default::default(),
        };
        for head in Element::F32.decode(&bytes[1]).chunks(self.lse.rows) {
            results.lse.extend(&head[..case.queries]);
        }
        for (n, i) in (0..2).filter(|&i| case.kv_segments[i] > 0).enumerate() {
            results.dk[i] = tensor(3 + 2 * n, &data.k[i])?;
            results.dv[i] = tensor(4 + 2 * n, &data.v[i])?;
        }
        Ok(results)
    }
}
