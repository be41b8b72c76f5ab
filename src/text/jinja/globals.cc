// Functions every chat template can call.
#include <algorithm>
#include <ctime>

#include "text/jinja/callable.h"
#include "text/jinja/runtime.h"

namespace quire::jinja {
namespace {

constexpr Int kRangeMax = 100000;  // the sandbox's

Value range(Runtime&, const Value&, Args& args) {
  if (!args.named.empty()) fail("range takes no named arguments");
  args.bind({"start", "stop", "step"}, 1);
  auto seq = make_counted<Seq>();
  seq->kind = SeqKind::range;
  seq->first = args[1] ? to_int(*args[0]) : 0;
  seq->stop = to_int(args[1] ? *args[1] : *args[0]);
  seq->step = args[2] ? to_int(*args[2]) : 1;
  if (seq->step == 0) fail("range() arg 3 must not be zero");
  constexpr Int kEdge = Int{1} << 64;
  for (const Int v : {seq->first, seq->stop, seq->step})
    if (v > kEdge || v < -kEdge) fail_unsupported("a range with bounds beyond 64 bits");
  const Int distance = seq->step > 0 ? seq->stop - seq->first : seq->first - seq->stop;
  const Int step = seq->step > 0 ? seq->step : -seq->step;
  const Int count = distance > 0 ? (distance + step - 1) / step : 0;
  if (count > kRangeMax) fail("Range too big. The sandbox blocks ranges larger than 100000");
  charge(static_cast<std::size_t>(count));
  for (Int i = 0; i < count; ++i) seq->items.emplace_back(seq->first + i * seq->step);
  return Value(SeqRef(std::move(seq)));
}

// dict(mapping or pairs, name=value...), as items.
Dict dict_items(Runtime& rt, Args& args) {
  if (args.positional.size() > 1) fail("dict takes at most 1 argument");
  Dict out;
  for (const Value& from : args.positional) {
    if (const Dict* d = from.dict()) {
      out = *d;
      continue;
    }
    for (const Value& pair : rt.walk(from)) {
      const Vector<Value> both = rt.walk(pair);
      if (both.size() != 2) fail("dict needs pairs");
      out.set(both[0], both[1]);
    }
  }
  for (auto& [name, value] : args.named) out.set(make_str(name), value);
  return out;
}

Value dict(Runtime& rt, const Value&, Args& args) { return make_dict(dict_items(rt, args)); }

Value make_namespace(Runtime& rt, const Value&, Args& args) {
  Vector<std::pair<std::string, Value>> items;
  for (auto& [key, value] : dict_items(rt, args).items) {
    if (!key.str()) fail_unsupported("a namespace with names that are not strings");
    if (key.str()->text().starts_with('_'))
      fail("a namespace holds no names that begin with an underscore");
    items.emplace_back(key.str()->text(), value);
  }
  return rt.make_namespace(std::move(items));
}

Value raise_exception(Runtime&, const Value&, Args& args) {
  args.bind({"message"}, 1);
  throw Failure{Code::invalid, std::string(to_str(*args[0]).text()), true};
}

Value strftime_now(Runtime& rt, const Value&, Args& args) {
  args.bind({"format"}, 1);
  const std::string format(args.str(0).text());
  if (format.size() > 200) fail("strftime_now's format is too long");
  const std::tm now = rt.now();
  char buffer[4096];
  const std::size_t size =
      format.empty() ? 0 : std::strftime(buffer, sizeof buffer, format.c_str(), &now);
  return make_str(std::string_view(buffer, size));
}

Value unsupported(Runtime&, const Value&, Args& args) {
  fail_unsupported("the function '" + std::string(args.who) + "'");
}

constexpr Named kGlobals[] = {{"range", range},
                              {"dict", dict},
                              {"namespace", make_namespace},
                              {"raise_exception", raise_exception},
                              {"strftime_now", strftime_now},
                              {"cycler", unsupported},
                              {"joiner", unsupported},
                              {"lipsum", unsupported}};

}  // namespace

const Function* find_global(std::string_view name) { return find_named(kGlobals, name); }

}  // namespace quire::jinja
