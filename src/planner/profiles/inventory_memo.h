// Internal to src/planner/profiles: the inventory of a model, kept for the next call that asks for the same one: a
// search asks thousands of times. Thread-safe: each thread has its own.
#pragma once

#include <memory>

#include "spec/inventory.h"

namespace fivefold {

std::shared_ptr<const Inventory> remembered_inventory(const ModelSpec& model);

}  // namespace fivefold
