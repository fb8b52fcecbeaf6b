#include "reconcile/doctor.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/table.h"
#include "base/text.h"
#include "reconcile/doctor_parts.h"

namespace fivefold {
namespace {

using Json = nlohmann::ordered_json;

// Words in lines of at most `width` columns, each behind `indent`.
std::string wrapped(const std::string& text, const std::string& indent, size_t width) {
  std::string lines, line = indent;
  for (const std::string& word : split(text, ' ')) {
    if (line.size() > indent.size() && line.size() + 1 + word.size() > width) {
      lines += line + "\n";
      line = indent;
    }
    line += (line.size() > indent.size() ? " " : "") + word;
  }
  return lines + line + "\n";
}

std::string remedies_table(const Diagnosis& diagnosis) {
  if (diagnosis.remedies.empty()) return "";
  const bool changes = !diagnosis.remedies.front().changes.empty();
  std::vector<std::string> header{"remedy", "needs", "fits", "tokens/s"};
  if (changes) header.emplace_back("changes");
  Table table(header);
  for (const FrameworkRemedy& remedy : diagnosis.remedies) {
    std::vector<std::string> cells{remedy.name, format_bytes(remedy.need), remedy.fits ? "yes" : "no",
                                   remedy.speed ? signed_percent(*remedy.speed) : ""};
    if (changes) cells.push_back(remedy.changes);
    table.add_row(std::move(cells));
  }
  // Each row with its settings below.
  constexpr size_t kHeadLines = 2;
  std::string text;
  size_t number = 0;
  for (const std::string& line : split(table.to_string(2), '\n')) {
    if (line.empty()) continue;
    text += line + "\n";
    if (number++ < kHeadLines) continue;
    const FrameworkRemedy& remedy = diagnosis.remedies[number - 1 - kHeadLines];
    for (const std::string& setting : remedy.settings) text += "    --set " + setting + "\n";
  }
  return text;
}

Json remedy_json(const FrameworkRemedy& remedy) {
  return {{"remedy", remedy.name}, {"set", remedy.settings}, {"changes", remedy.changes},
          {"need", remedy.need},   {"fits", remedy.fits},    {"speed", remedy.speed ? Json(*remedy.speed) : Json()}};
}

}  // namespace

Symptom likely_symptom(const DoctorCase& the_case) {
  const bool failed = the_case.request > 0 || the_case.unallocated > 0 ||
                      (the_case.log && !the_case.log->out_of_memory.empty()) ||
                      (the_case.prediction && !the_case.prediction->fits());
  return failed || !the_case.prediction ? Symptom::kOutOfMemory : Symptom::kSlow;
}

Diagnosis diagnose(const DoctorCase& the_case, Symptom symptom) {
  FIVEFOLD_CHECK(symptom == Symptom::kOutOfMemory || the_case.prediction.has_value());
  Diagnosis diagnosis = symptom == Symptom::kOutOfMemory ? diagnose_memory(the_case)
                        : symptom == Symptom::kSlow      ? diagnose_pace(the_case)
                                                         : diagnose_scaling(the_case);
  if (the_case.prediction)
    diagnosis.notes.insert(diagnosis.notes.end(), the_case.prediction->notes.begin(), the_case.prediction->notes.end());
  return diagnosis;
}

std::string to_text(const Diagnosis& diagnosis) {
  constexpr size_t kColumns = 110;
  std::string text = diagnosis.summary + "\n\n";
  int number = 0;
  for (const DoctorStep& step : diagnosis.steps) {
    text += std::to_string(++number) + ". " + step.title + (step.cause ? "  <- cause" : "") + "\n";
    text += wrapped(step.finding, "   ", kColumns);
    if (!step.advice.empty()) text += wrapped("-> " + step.advice, "   ", kColumns);
  }
  if (!diagnosis.remedies.empty()) {
    text += diagnosis.symptom == Symptom::kOutOfMemory
                ? "\nRemedies, in the order to try them, each alone (" + format_bytes(diagnosis.need) + " needed of " +
                      format_bytes(diagnosis.capacity) + ")\n"
                : "\nWhat is quicker and fits, each alone\n";
    text += remedies_table(diagnosis);
  }
  if (diagnosis.together) {
    text += "None is enough alone. Together: " + diagnosis.together->name + ": " +
            format_bytes(diagnosis.together->need) +
            (diagnosis.together->speed ? ", " + signed_percent(*diagnosis.together->speed) + " tokens/s" : "") + "\n";
    for (const std::string& setting : diagnosis.together->settings) text += "    --set " + setting + "\n";
  }
  for (const std::string& note : diagnosis.notes) text += "note: " + note + "\n";
  return text;
}

Json to_json(const Diagnosis& diagnosis) {
  Json steps = Json::array(), remedies = Json::array();
  for (const DoctorStep& step : diagnosis.steps)
    steps.push_back({{"title", step.title}, {"finding", step.finding}, {"advice", step.advice}, {"cause", step.cause}});
  for (const FrameworkRemedy& remedy : diagnosis.remedies) remedies.push_back(remedy_json(remedy));
  return {{"symptom", to_string(diagnosis.symptom)},
          {"summary", diagnosis.summary},
          {"steps", std::move(steps)},
          {"remedies", std::move(remedies)},
          {"together", diagnosis.together ? remedy_json(*diagnosis.together) : Json()},
          {"need", diagnosis.need},
          {"capacity", diagnosis.capacity},
          {"notes", diagnosis.notes}};
}

}  // namespace fivefold
