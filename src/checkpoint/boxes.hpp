// Boxes of logical tensors, which the layout makes and a checkpoint stores: see grid/boxes.hpp.
#pragma once

#include "grid/boxes.hpp"

namespace trireme::checkpoint {
using grid::Box;
using grid::Boxes;
using grid::check_boxes;
using grid::count_elements;
using grid::cut_boxes;
using grid::whole;
}  // namespace trireme::checkpoint
