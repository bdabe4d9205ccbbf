#include "layout/placement.hpp"

namespace glu_ckpt {

Placement place_matrix(const StoredPart& part, Role role, bool fused, i64 block_rows) {
  const bool out_in = part.axes == Axes::OutIn;
  Placement place;
  place.row_step = part.element_bytes * (out_in ? part.cols : 1);
  place.col_step = part.element_bytes * (out_in ? 1 : part.stored_rows);
  place.offset = part.slot * (part.stored_rows + part.padding_rows) * part.cols * part.element_bytes;
  if (!fused || (role != Role::Gate && role != Role::Up)) {
    place.block_rows = part.stored_rows;
    place.block_step = part.stored_rows * place.row_step;
    return place;
  }
  place.block_rows = block_rows;
  place.block_step = 2 * block_rows * place.row_step;
  if (role == Role::Up) place.offset += block_rows * place.row_step;
  return place;
}

HalvedPlaces place_halved(const StoredPart& half, Role role, i64 block_rows) {
  HalvedPlaces places;
  places.first = place_matrix(half, role, true, block_rows);
  places.tail = places.first;
  places.tail.offset -= half.stored_rows * places.first.row_step;
  // FC1's first half has F / K blocks; every other one is the gate's, beginning with the first.
  const i64 blocks = half.stored_rows / block_rows;
  places.tail_row = (role == Role::Gate ? (blocks + 1) / 2 : blocks / 2) * block_rows;
  return places;
}

}  // namespace glu_ckpt
