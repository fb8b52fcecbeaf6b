#include "engine/calibrate.h"

#include <ATen/Parallel.h>
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "comm/local_world.h"
#include "engine/calibrate_stopwatch.h"
#include "engine/session.h"

namespace fivefold {
namespace {

constexpr int64_t kRotatedBytes = int64_t{24} << 20;  // operands of products that follow one another, together
constexpr int64_t kCopyBytes = int64_t{64} << 20;
constexpr int64_t kOverlapBytes = int64_t{16} << 20;
constexpr double kOverlapSeconds = 0.2;
constexpr double kLeastOverlapShare = 0.01;  // a share of zero would read as not measured
constexpr int64_t kReferenceExtent = 512;

at::Tensor filled(int64_t rows, int64_t cols, DType dtype) {
  at::Tensor tensor = allocate(Account::kOther, {rows, cols}, dtype);
  tensor.fill_(0.01);
  return tensor;
}

double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Operands of one product, as the primitive of its use takes them.
struct GemmOperands {
  at::Tensor a, b, out;
};

GemmOperands make_operands(const GemmTask& task) {
  const auto [use, m, n, k, dtype] = task;
  switch (use) {
    case GemmUse::kForward:
      return {filled(m, k, dtype), filled(n, k, dtype), filled(m, n, dtype)};
    case GemmUse::kInputGrad:
      return {filled(m, k, dtype), filled(k, n, dtype), filled(m, n, dtype)};
    case GemmUse::kWeightGrad:
      return {filled(k, m, dtype), filled(k, n, dtype), filled(m, n, dtype)};
  }
  FIVEFOLD_CHECK(false);
}

void multiply(GemmUse use, GemmOperands& operands) {
  switch (use) {
    case GemmUse::kForward:
      return ops::linear_forward(operands.a, operands.b, at::Tensor(), at::Tensor(), operands.out);
    case GemmUse::kInputGrad:
      return ops::linear_input_grad(operands.a, operands.b, operands.out);
    case GemmUse::kWeightGrad:
      return ops::linear_weight_grad(operands.a, operands.b, operands.out, /*accumulate=*/false);
  }
}

GlobalBatch random_batch(const StepTask& task) {
  GlobalBatch batch;
  batch.rows = task.config.config.batch.global;
  batch.sequence = task.config.config.batch.sequence;
  uint64_t state = 1;
  const auto next = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(task.model.vocab));
  };
  for (int64_t row = 0; row < batch.rows; ++row) {
    batch.document_lengths.push_back({static_cast<int32_t>(batch.sequence)});
    for (int64_t i = 0; i < batch.sequence; ++i) {
      batch.input_ids.push_back(next());
      batch.targets.push_back(next());
      batch.positions.push_back(static_cast<int32_t>(i));
    }
  }
  return batch;
}

// One rank's part of a request; rank 0 writes the result.
class RankMeasurements {
 public:
  RankMeasurements(const MeasureRequest& request, Communicator& communicator, Measurements& result)
      : request_(request),
        communicator_(communicator),
        stopwatch_(communicator, request.seconds_per_task),
        result_(result) {}

  void run() {
    const double before = reference();
    std::vector<double> gemms, collectives;
    std::vector<StepSeconds> steps;
    const auto done = [this] {
      if (communicator_.rank() == 0 && request_.on_task) request_.on_task();
    };
    for (const GemmTask& task : request_.gemms) gemms.push_back(gemm(task)), done();
    for (const StepTask& task : request_.steps) steps.push_back(step(task)), done();
    for (const CollectiveTask& task : request_.collectives) collectives.push_back(collective(task)), done();
    const double copied = copy();
    const double share = communicator_.size() > 1 ? overlap() : 0.0;
    const double after = reference();
    if (communicator_.rank() == 0)
      result_ = {.gemms = std::move(gemms),
                 .collectives = std::move(collectives),
                 .steps = std::move(steps),
                 .copy_bytes_per_s = copied,
                 .overlap_share = share,
                 .reference_before_s = before,
                 .reference_after_s = after,
                 .cpu_share = cpu_share_};
  }

 private:
  double gemm(const GemmTask& task) {
    const int64_t bytes = (task.m * task.k + task.k * task.n + task.m * task.n) * dtype_bytes(task.dtype);
    std::vector<GemmOperands> operands;
    for (int64_t sets = std::clamp<int64_t>(kRotatedBytes / bytes, 1, 16); sets > 0; --sets)
      operands.push_back(make_operands(task));
    return stopwatch_.seconds([&](int i) { multiply(task.use, operands[static_cast<size_t>(i) % operands.size()]); });
  }

  // On one thread of each rank: what other processes do shows, whatever the number of threads.
  double reference() {
    omp_set_num_threads(1);
    at::set_num_threads(1);
    const GemmTask task{.m = kReferenceExtent, .n = kReferenceExtent, .k = kReferenceExtent};
    const double wall = wall_seconds(), cpu = thread_cpu_seconds();
    const double seconds = gemm(task);
    cpu_share_ = std::min(cpu_share_, (thread_cpu_seconds() - cpu) / (wall_seconds() - wall));
    omp_set_num_threads(request_.threads);
    at::set_num_threads(request_.threads);
    return seconds;
  }

  double copy() {
    const at::Tensor from = filled(1, kCopyBytes / 4, DType::kFloat32), to = filled(1, kCopyBytes / 4, DType::kFloat32);
    const double seconds = stopwatch_.seconds([&](int) { to.copy_(from); });
    return 2.0 * static_cast<double>(kCopyBytes) * communicator_.size() / seconds;
  }

  Work issue(const CollectiveTask& task, const at::Tensor& full) {
    const Group& world = communicator_.world();
    const Buffer whole = as_buffer(full, DType::kFloat32);
    Buffer mine = whole;
    mine.bytes /= world.size();
    mine.pointer = static_cast<std::byte*>(whole.pointer) + mine.bytes * world.rank();
    const CallOptions options{.mode = Mode::kAsync, .stream = {}, .keep_alive = {}};
    switch (task.kind) {
      case CollectiveKind::kAllReduce:
        return communicator_.all_reduce(world, whole, Reduction::kSum, Purpose::kControl, options);
      case CollectiveKind::kReduceScatter:
        return communicator_.reduce_scatter(world, whole, mine, Reduction::kSum, Purpose::kControl, options);
      case CollectiveKind::kAllGather:
        return communicator_.all_gather(world, mine, whole, Purpose::kControl, options);
      default:
        FIVEFOLD_CHECK(false, "calibrate times the collectives of training");
    }
  }

  at::Tensor full_tensor(int64_t bytes) {
    const int64_t chunk = std::max<int64_t>(1, bytes / 4 / communicator_.size());
    return filled(1, chunk * communicator_.size(), DType::kFloat32).zero_();
  }

  double collective(const CollectiveTask& task) {
    const at::Tensor full = full_tensor(task.bytes);
    return stopwatch_.seconds([&](int) { issue(task, full).wait_host(); });
  }

  // A collective beside products that take about twice as long as it. The difference of two times: more repetitions.
  double overlap() {
    Stopwatch patient(communicator_, kOverlapSeconds);
    const CollectiveTask gather{CollectiveKind::kAllGather, kOverlapBytes};
    const at::Tensor full = full_tensor(gather.bytes);
    const double alone = patient.seconds([&](int) { issue(gather, full).wait_host(); });
    const GemmTask task{.m = kReferenceExtent, .n = kReferenceExtent, .k = kReferenceExtent};
    GemmOperands operands = make_operands(task);
    const double product = patient.seconds([&](int) { multiply(task.use, operands); });
    const int count = static_cast<int>(std::clamp(2 * alone / product, 1.0, 100.0)) + 1;
    const auto compute = [&] {
      for (int i = 0; i < count; ++i) multiply(task.use, operands);
    };
    const double computing = patient.seconds([&](int) { compute(); });
    const double together = patient.seconds([&](int) {
      const Work work = issue(gather, full);
      compute();
      work.wait_host();
    });
    return std::clamp((together - computing) / alone, kLeastOverlapShare, 1.0);
  }

  StepSeconds step(const StepTask& task) {
    const Inventory inventory = build_inventory(task.model);
    const auto alone = LocalWorld::create(1);
    RankSession session(task.model, inventory, task.config, *alone[0]);
    session.executor().initialize_weights(1);
    const auto microbatches = rank_microbatches(random_batch(task), task.config, 0);
    OperationClock clock;
    session.executor().set_operation_clock(&clock);
    session.step(microbatches, 1e-4, 1);
    clock.clear();
    StepSamples samples(inventory.num_units());
    for (int i = 0; i < task.steps; ++i) {
      communicator_.barrier(communicator_.world(), Purpose::kControl);
      const double begin = wall_seconds();
      session.step(microbatches, 1e-4, i + 2);
      samples.add(session, wall_seconds() - begin);
      const double squares = wall_seconds();
      session.executor().local_squared_grad_norm();
      samples.sum_of_squares.push_back(wall_seconds() - squares);
    }
    StepSeconds seconds = samples.seconds();
    for (const auto& [key, values] : clock.samples()) add_operation(seconds, key, fastest_tenth(values));
    return seconds;
  }

  // What the instructions of several steps took.
  struct StepSamples {
    std::vector<std::vector<double>> optimizer, accumulate;  // by unit
    std::vector<double> sum_of_squares, between;

    explicit StepSamples(int units) : optimizer(static_cast<size_t>(units)), accumulate(static_cast<size_t>(units)) {}

    void add(RankSession& session, double step_s) {
      const std::vector<Instruction>& instructions = session.program().instructions;
      for (size_t i = 0; i < instructions.size(); ++i) {
        const InstructionTime& time = session.interpreter().times()[i];
        const double seconds = time.end_s - time.begin_s;
        step_s -= seconds;
        const auto unit = static_cast<size_t>(instructions[i].unit);
        if (instructions[i].op == Opcode::kOptimizerStep) optimizer[unit].push_back(seconds);
        if (instructions[i].op == Opcode::kAccumulateGrads && instructions[i].accumulate)
          accumulate[unit].push_back(seconds);
      }
      between.push_back(step_s);
    }
    StepSeconds seconds() const {
      const auto fastest = [](const std::vector<double>& s) { return s.empty() ? 0.0 : fastest_tenth(s); };
      StepSeconds result;
      for (const auto& samples : optimizer) result.optimizer.push_back(fastest(samples));
      for (const auto& samples : accumulate) result.accumulate.push_back(fastest(samples));
      result.sum_of_squares = fastest(sum_of_squares);
      result.between_instructions = fastest(between);
      return result;
    }
  };

  static void add_operation(StepSeconds& seconds, const OperationClock::Key& key, double value) {
    const auto [unit, operation, pass, part] = key;
    std::vector<OperationSeconds>& list = seconds.operations;
    auto entry = std::find_if(list.begin(), list.end(), [&, u = unit, o = operation, p = pass](const auto& other) {
      return other.unit == u && other.operation == o && other.pass == p;
    });
    if (entry == list.end()) entry = list.insert(list.end(), {unit, operation, pass, 0, 0});
    (part == OperationClock::Part::kMatrix ? entry->matrix : entry->rest) = value;
  }

  const MeasureRequest& request_;
  Communicator& communicator_;
  Stopwatch stopwatch_;
  Measurements& result_;
  double cpu_share_ = 1;
};

}  // namespace

Measurements run_measurements(const MeasureRequest& request) {
  install_counting_allocator();
  Measurements result;
  run_ranks(request.ranks, {}, [&](int, Communicator& communicator) {
    MemoryLedger ledger;
    const RankThread thread(ledger, request.threads);
    RankMeasurements(request, communicator, result).run();
  });
  return result;
}

}  // namespace fivefold
