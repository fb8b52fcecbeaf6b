// Ledger: predicted memory of a rank under fivefold's own engine: the Program of a step replayed over the tapes of its
// units. Peaks are exact for every account but workspace, which is bounded. Formulas and worked numbers:
// docs/memory.md. Pure functions, thread-safe.
#pragma once

#include <string>
#include <vector>

#include "schedule/run_program.h"
#include "spec/account_bytes.h"
#include "spec/model.h"

namespace fivefold {

struct MemoryLine {
  std::string name;  // "activations: layers.3.gate_up"
  Account account = Account::kOther;
  int64_t bytes = 0;
  std::string formula;  // with its numbers
};

struct Ledger {
  AccountBytes persistent;  // between steps: states and data
  AccountBytes peak;        // per account, each at its own moment of the step
  AccountBytes at_peak;     // per account at the moment of the largest sum
  int64_t peak_total = 0;   // that sum
  std::string peak_moment;  // the instruction during which it is reached
};

// Of one rank during a training step. Ranks of a tensor group differ in the padding of the vocabulary, ranks of a shard
// group in the partial gradients that lie in their shards; else all have the same.
Ledger predict_memory(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config, int rank = 0);

// Of one instruction of the step's Program: what is live when it begins, and the most that is while it runs.
struct InstructionMemory {
  AccountBytes before, most;
};
// REQUIRES: `instruction` is its place in training_program() of the rank.
InstructionMemory predict_memory_at(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config,
                                    int rank, size_t instruction);

// Of the ids, targets, positions and document offsets of one microbatch, which live for the whole step.
int64_t microbatch_data_bytes(const ResolvedConfig& config);

// Of fp32 cosines and sines per position and pair, one table per distinct RoPE, which live as long as the run.
int64_t rope_table_bytes(const ModelSpec& model, const ResolvedConfig& config);

// The same ledger from a replay of at most three microbatches: those between the first and the last are alike, so only
// their data is added. For searches over many long steps.
Ledger predict_memory_shortened(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);

// Bytes live after each instruction of the step's Program, for timelines: total over accounts.
std::vector<int64_t> memory_timeline(const ModelSpec& model, const Inventory& inventory, const ResolvedConfig& config);

}  // namespace fivefold
