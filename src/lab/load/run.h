// lab/load/run.h - sends a workload to a server and records what happened, request by request.
//
//   Plan plan{.endpoint = server, .ask = {.model = "m"}, .concurrency = 8};
//   TRY(plan.ask.calibration, calibrate(plan));
//   TRY(Measured run, run_load(plan, workload));
//   Summary s = summarize(run, {});          // lab/load/summary.h
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/load/dialogue.h"
#include "lab/load/workload.h"
#include "net/http_client.h"

namespace quire::load {

struct Plan {
  Endpoint endpoint;
  AskOptions ask;
  std::string headers;            // whole lines, for every request
  std::uint32_t concurrency = 0;  // closed loop: sessions side by side; 0: they begin by the clock
  double timeout_s = 600;
  std::function<void(std::size_t ended, std::size_t of)> progress;  // may be empty
};

// Times are seconds since the run began. Measured at the socket, where bytes arrive.
struct Record {
  std::uint32_t session = 0, turn = 0;
  double late_s = 0;  // sent this long after it was due: the generator was too slow
  double sent_s = 0, first_s = -1, last_s = -1, end_s = 0;  // first_s < 0: no text came
  std::vector<float> gaps_s = {};                           // between chunks with text
  Usage usage = {};
  std::string error = {};  // empty: a whole answer
};

struct Measured {
  std::vector<Record> requests;  // as they ended
  double seconds = 0;            // from the first byte sent to the last received
  double client_cpu_s = 0;       // what measuring took of the processor
};

Result<Measured> run_load(const Plan& plan, const Workload& workload);

// Asks the server how many tokens words are. Nothing to learn for token ids.
Result<Calibration> calibrate(const Plan& plan);
// The first model the server lists.
Result<std::string> first_model(const Endpoint& endpoint, const std::string& headers);

}  // namespace quire::load
