//! Protocol-buffer messages, as far as event files need them.

/// A protocol-buffer message in the making (protobuf.dev, "Encoding").
#[derive(Default)]
pub(super) struct Message(pub Vec<u8>);

impl Message {
    fn key(&mut self, field: u64, wire_type: u64) {
        self.raw_varint(field << 3 | wire_type);
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn varint(&mut self, field: u64, value: u64) {
        self.key(field, 0);
        self.raw_varint(value);
    }

    pub fn double(&mut self, field: u64, value: f64) {
        self.key(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, field: u64, value: &[u8]) {
        self.key(field, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    pub fn float(&mut self, field: u64, value: f32) {
        self.key(field, 5);
        self.0.extend_from_slice(&value.to_le_bytes());
    }
}
