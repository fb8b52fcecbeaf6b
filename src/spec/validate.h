// What is wrong with a configuration, said before any rank starts: each problem with its key, the reason and the
// nearest setting that is right, all problems at once. Three questions: does the layout make sense for the model at all
// (planner and exporters), does fivefold's own engine run it, and does it say everything that `train` needs.
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/model.h"
#include "spec/run_config.h"

namespace fivefold {

// Rules that hold whoever runs it: docs/configuration.md lists the keys, docs/decisions.md the rules that are choices.
// Needs no padding to be legal: vocabulary, sequence and layers that do not divide are padded or split unevenly, KV
// heads fewer than tp are replicated (layout_notes). resolve() succeeds on a configuration without errors.
std::vector<Error> validate_layout(const ModelSpec& model, const RunConfig& config);

// What the user should know about a legal layout, `hint` empty: padding, replicated KV heads, uneven stages, repeated
// collectives. REQUIRES: validate_layout() finds nothing.
std::vector<Error> layout_notes(const ModelSpec& model, const RunConfig& config);

// What fivefold's engine does not run although the layout is legal.
std::vector<Error> validate_engine(const ModelSpec& model, const RunConfig& config);

// What `train` needs beside a model and a layout: a length, data, a usable name; schedules that fit the length.
std::vector<Error> validate_run(const RunConfig& config);

// The degrees c at which Ulysses splits heads evenly: c divides the query heads, and c and the KV heads divide one
// another one way or the other (fewer KV heads than c are replicated). Ascending.
std::vector<int64_t> ulysses_degrees(int64_t num_heads, int64_t num_kv_heads);

// For the terminal: a count, then each problem on a line with its hint below. Empty for no errors.
std::string to_string(const std::vector<Error>& errors);

}  // namespace fivefold
