// The keys of every line of the run record, each named once for writing and for reading. A visitor is called as
// visit(key, field), for integers not negative; visit.seconds(key, field) for times, which are finite and not negative;
// visit.moment(key, field) for times that may be negative; visit.index(key, field) where -1 stands for none, and
// visit.optional(key, field) for a text or number whose key may be missing where it is empty or 0. Not for users of the
// record: see record_writer.h and record_reader.h.
#pragma once

#include <concepts>
#include <string_view>
#include <type_traits>

#include "record/run_record.h"

namespace fivefold {

// `Line` or `const Line`.
template <typename T, typename Line>
concept LineOf = std::same_as<std::remove_const_t<T>, Line>;

constexpr std::string_view line_kind(const RunStart&) { return "run"; }
constexpr std::string_view line_kind(const ProgramRecord&) { return "program"; }
constexpr std::string_view line_kind(const StepRecord&) { return "step"; }
constexpr std::string_view line_kind(const EvaluationRecord&) { return "evaluation"; }
constexpr std::string_view line_kind(const CheckpointRecord&) { return "checkpoint"; }
constexpr std::string_view line_kind(const ProcessRecord&) { return "process"; }
constexpr std::string_view line_kind(const EventRecord&) { return "event"; }
constexpr std::string_view line_kind(const SummaryRecord&) { return "summary"; }

void visit_fields(auto& visit, LineOf<Coordinates> auto& at) {
  visit("tp", at.tp);
  visit("cp", at.cp);
  visit("dp", at.dp);
  visit("pp", at.pp);
  visit("etp", at.etp);
  visit("ep", at.ep);
  visit("edp", at.edp);
  visit("shard", at.shard);
  visit("replicate", at.replicate);
}

void visit_fields(auto& visit, LineOf<RunStart> auto& line) {
  visit("fivefold", line.fivefold_version);
  visit("rank", line.rank);
  visit("world", line.world);
  visit("coordinates", line.coordinates);
  visit("configuration", line.configuration);
  visit("model_config", line.model_config);
  visit.optional("schedule", line.schedule);
  visit("parameters", line.parameters);
  visit("embedding_parameters", line.embedding_parameters);
  visit("threads", line.threads);
  visit("instruction_set", line.instruction_set);
  visit.seconds("started_at", line.started_at);
  visit("resumed_from", line.resumed_from);
}

void visit_fields(auto& visit, LineOf<RecordedInstruction> auto& instruction) {
  visit("op", instruction.op);
  visit("unit", instruction.unit);
  visit.index("microbatch", instruction.microbatch);
}

void visit_fields(auto& visit, LineOf<ProgramRecord> auto& line) { visit("instructions", line.instructions); }

void visit_fields(auto& visit, LineOf<RecordedTraffic> auto& traffic) {
  visit("kind", traffic.kind);
  visit("group", traffic.group);
  visit("purpose", traffic.purpose);
  visit("calls", traffic.calls);
  visit("bytes", traffic.bytes);
}

void visit_fields(auto& visit, LineOf<RecordedCall> auto& call) {
  visit("kind", call.kind);
  visit("group", call.group);
  visit("purpose", call.purpose);
  visit("bytes", call.bytes);
  visit.moment("begin", call.begin_s);
  visit.moment("end", call.end_s);
  visit.seconds("exposed", call.exposed_s);
}

void visit_fields(auto& visit, LineOf<StepRecord> auto& line) {
  visit("step", line.step);
  visit("loss", line.loss);
  visit("grad_norm", line.grad_norm);
  visit("lr", line.lr);
  visit.optional("loss_scale", line.loss_scale);
  visit("tokens", line.tokens);
  visit("valid_tokens", line.valid_tokens);
  visit("samples_consumed", line.samples_consumed);
  visit("updated", line.updated);
  visit.seconds("begin", line.begin_s);
  visit.seconds("seconds", line.seconds);
  visit("live", line.live);
  visit("peak", line.peak);
  visit("at_peak", line.at_peak);
  visit("peak_total", line.peak_total);
  visit("traffic", line.traffic);
  visit("collective_seconds", line.collective_seconds);
  visit("times", line.times);
  visit("calls", line.calls);
}

void visit_fields(auto& visit, LineOf<EvaluationRecord> auto& line) {
  visit("step", line.step);
  visit("loss", line.loss);
  visit("tokens", line.tokens);
  visit.seconds("begin", line.begin_s);
  visit.seconds("seconds", line.seconds);
}

void visit_fields(auto& visit, LineOf<CheckpointRecord> auto& line) {
  visit("step", line.step);
  visit.seconds("begin", line.begin_s);
  visit.seconds("seconds", line.seconds);
  visit("bytes", line.bytes);
  visit("path", line.path);
}

void visit_fields(auto& visit, LineOf<ProcessRecord> auto& line) {
  visit("rss_idle", line.rss_idle);
  visit("rss_before_model", line.rss_before_model);
  visit("rss_peak", line.rss_peak);
  visit("ranks", line.ranks);
}

void visit_fields(auto& visit, LineOf<EventRecord> auto& line) {
  visit("kind", line.kind);
  visit("step", line.step);
  visit.seconds("begin", line.begin_s);
  visit("text", line.text);
}

void visit_fields(auto& visit, LineOf<SummaryRecord> auto& line) {
  visit("steps", line.steps);
  visit("tokens", line.tokens);
  visit.seconds("seconds", line.seconds);
  visit("finished", line.finished);
}

}  // namespace fivefold
