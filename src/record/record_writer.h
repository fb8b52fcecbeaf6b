// RecordWriter: appends one rank's lines to its run record. Each line reaches the file whole, in one write; nothing is
// kept in memory. One thread per object.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "record/run_record.h"

namespace fivefold {

// The record could not be written: full disk, no permission. Names the file.
class RecordError : public std::runtime_error {
 public:
  RecordError(const std::filesystem::path& file, const std::string& action, int error_number);
  int error_number() const { return error_number_; }

 private:
  int error_number_;
};

// RUN_DIRECTORY/record/rank-N.jsonl.
std::filesystem::path record_file(const std::filesystem::path& run_directory, int rank);

class RecordWriter {
 public:
  // Makes the folder; appends when the file exists, after cutting off an incomplete last line that a killed run left.
  // Throws RecordError, as every write does. A write that failed leaves no part of its line where the file allows it.
  RecordWriter(const std::filesystem::path& run_directory, int rank);
  ~RecordWriter();
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;

  // First of a session, then its program.
  void write(const RunStart& line);
  void write(const ProgramRecord& line);
  void write(const StepRecord& line);
  void write(const EvaluationRecord& line);
  void write(const CheckpointRecord& line);
  void write(const ProcessRecord& line);
  void write(const EventRecord& line);
  void write(const SummaryRecord& line);

  // Further writes throw. Called by the destructor.
  void close();
  const std::filesystem::path& file() const { return file_; }

 private:
  void append(std::string line);

  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace fivefold
