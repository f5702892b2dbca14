//! The smallest rectangle around pixels: one of its sides lies on a side of their convex hull (Freeman and Shapira 1975).

/// A rectangle in any direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rectangle {
    centre: [f64; 2],
    /// Unit vector of the first side; the second is it turned from x to y.
    direction: [f64; 2],
    sides: [f64; 2],
}

impl Rectangle {
    pub fn shorter_side(&self) -> f64 {
        self.sides[0].min(self.sides[1])
    }

    pub fn area(&self) -> f64 {
        self.sides[0] * self.sides[1]
    }

    pub fn perimeter(&self) -> f64 {
        2.0 * (self.sides[0] + self.sides[1])
    }

    /// With `distance` more on each side.
    pub fn grown(&self, distance: f64) -> Self {
        Self {
            sides: self.sides.map(|side| side + 2.0 * distance),
            ..*self
        }
    }

    /// Its corners as `[x, y]`, in order around it, from x to y.
    pub fn corners(&self) -> [[f64; 2]; 4] {
        let ([x, y], [along_x, along_y]) = (self.centre, self.direction);
        [(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5)].map(|(first, second)| {
            let (first, second) = (first * self.sides[0], second * self.sides[1]);
            [
                x + first * along_x - second * along_y,
                y + first * along_y + second * along_x,
            ]
        })
    }
}

/// The smallest rectangle around the centres of pixels `[x, y]`; of equal ones, that of the hull's first side.
///
/// # Panics
/// Without any pixel.
pub(super) fn min_area_rectangle(pixels: &[[i64; 2]]) -> Rectangle {
    let hull = convex_hull(pixels);
    let of_side = |index: usize| {
        let ([from_x, from_y], [to_x, to_y]) = (hull[index], hull[(index + 1) % hull.len()]);
        let (along_x, along_y) = ((to_x - from_x) as f64, (to_y - from_y) as f64);
        let length = along_x.hypot(along_y);
        // A hull of one pixel has one side, which has no direction.
        let direction = if length == 0.0 {
            [1.0, 0.0]
        } else {
            [along_x / length, along_y / length]
        };
        around(&hull, direction)
    };
    let rectangles = (0..hull.len()).map(of_side);
    rectangles
        .reduce(|best, other| if other.area() < best.area() { other } else { best })
        .expect("a region has a pixel")
}

fn around(hull: &[[i64; 2]], [along_x, along_y]: [f64; 2]) -> Rectangle {
    let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
    for &[x, y] in hull {
        let (x, y) = (x as f64, y as f64);
        let place = [x * along_x + y * along_y, y * along_x - x * along_y];
        for axis in 0..2 {
            low[axis] = low[axis].min(place[axis]);
            high[axis] = high[axis].max(place[axis]);
        }
    }
    let middle = [0, 1].map(|axis| (low[axis] + high[axis]) / 2.0);
    Rectangle {
        centre: [
            middle[0] * along_x - middle[1] * along_y,
            middle[0] * along_y + middle[1] * along_x,
        ],
        direction: [along_x, along_y],
        sides: [0, 1].map(|axis| high[axis] - low[axis]),
    }
}

/// Andrew's monotone chain (1979): corners in order around the hull, without those on a side.
fn convex_hull(pixels: &[[i64; 2]]) -> Vec<[i64; 2]> {
    let mut sorted = pixels.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() < 3 {
        return sorted;
    }
    let half = |points: &mut dyn Iterator<Item = &[i64; 2]>| {
        let mut chain: Vec<[i64; 2]> = Vec::new();
        for &point in points {
            while let [.., before, last] = chain[..] {
                let turn = (last[0] - before[0]) * (point[1] - before[1])
                    - (last[1] - before[1]) * (point[0] - before[0]);
                if turn > 0 {
                    break;
                }
                chain.pop();
            }
            chain.push(point);
        }
        chain.pop();
        chain
    };
    let mut hull = half(&mut sorted.iter());
    hull.extend(half(&mut sorted.iter().rev()));
    hull
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rectangle_of_a_turned_square_is_turned() {
        // All pixels with |x| + |y| <= 10, around (50, 60).
        let mut pixels = Vec::new();
        for y in -10_i64..=10 {
            for x in -(10 - y.abs())..=10 - y.abs() {
                pixels.push([50 + x, 60 + y]);
            }
        }
        let rectangle = min_area_rectangle(&pixels);
        assert!((rectangle.area() - 200.0).abs() < 1e-9);
        assert!((rectangle.grown(1.0).shorter_side() - (200.0_f64.sqrt() + 2.0)).abs() < 1e-9);
        let mut corners = rectangle
            .corners()
            .map(|corner| corner.map(|place| place.round() as i64));
        corners.sort_unstable();
        assert_eq!(corners, [[40, 60], [50, 50], [50, 70], [60, 60]]);
    }

    #[test]
    fn few_pixels_have_a_rectangle_without_area() {
        assert_eq!(min_area_rectangle(&[[3, 4]]).corners(), [[3.0, 4.0]; 4]);
        let line = min_area_rectangle(&[[0, 0], [3, 4], [6, 8]]);
        assert!(line.area().abs() < 1e-12 && (line.perimeter() - 20.0).abs() < 1e-12);
        assert!(line.shorter_side().abs() < 1e-12);
    }
}
