#include "server/kv_parse.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/sessions.h"

namespace quire {
namespace {

constexpr double kBlendDefault = 0.15;

std::uint8_t block_priority(std::int32_t priority) {  // -100..100 to 0..100
  return static_cast<std::uint8_t>((std::clamp(priority, -100, 100) + 100) / 2);
}

// "approximate" is CacheBlend; "recompute" the share of what is found that is computed again.
void parse_reuse(Fields& f, KvPolicy& policy) {
  if (const auto reuse = f.text("reuse", 32)) {
    if (*reuse == "none")
      policy.reuse = false;
    else if (*reuse == "session")
      f.refuse(not_implemented("kv.reuse \"" + *reuse + "\"", f.path("reuse")));
    else if (*reuse == "approximate")
      policy.blend = kBlendDefault;
    else if (*reuse != "auto")
      f.refuse("reuse", "must be auto, none, session or approximate");
  }
  if (const auto share = f.number("recompute", 0, 1)) {
    if (policy.blend)
      policy.blend = *share;
    else
      f.refuse("recompute", "goes with kv.reuse approximate");
  }
  if (const auto write = f.text("write", 32)) {
    if (*write == "none")
      policy.write = KvWrite::none;
    else if (*write == "prompt")
      policy.write = KvWrite::prompt;
    else if (*write != "auto")
      f.refuse("write", "must be auto, none or prompt");
  }
}

void parse_retention(Fields& f, KvRequest& kv) {
  auto r = f.object("retention");
  if (!r) return;
  const auto ttl = r->duration("ttl");
  const bool pin = r->boolean("pin").value_or(false);
  const std::string scope = r->text("scope", 16).value_or("prompt");
  if (scope != "prompt" && scope != "all" && scope != "system")
    r->refuse("scope", "must be prompt, all or system");
  if (pin)
    kv.policy.leases.push_back(
        {.ttl = ttl.value_or(0), .priority = block_priority(kv.priority), .pin = true});
  else if (ttl)
    kv.policy.ttl = *ttl;
  if (const Json* ranges = r->find("ranges")) {
    if (!ranges->is_array() || ranges->size() > 16)
      return r->refuse("ranges", "must be a list of at most 16 ranges");
    for (const Json& range : *ranges) {
      if (!range.is_object()) return r->refuse("ranges", "must hold objects");
      Fields one(range, r->path("ranges"));
      const auto start = one.integer("start", 0, 0xffffffff);
      const auto end = one.integer("end", 0, 0xffffffff);
      const auto priority = one.integer("priority", -100, 100);
      const auto range_ttl = one.duration("ttl");
      one.refuse_unknown();
      if (one.failed()) return r->refuse(one.error());
      kv.policy.leases.push_back(
          {.first_token = static_cast<std::uint32_t>(start.value_or(0)),
           .end_token = static_cast<std::uint32_t>(end.value_or(0xffffffff)),
           .ttl = range_ttl.value_or(ttl.value_or(0)),
           .priority = block_priority(static_cast<std::int32_t>(priority.value_or(kv.priority)))});
    }
  }
  r->refuse_unknown();
}

// A name, "KEYS/VALUES", or {k, v, group, recent_exact, sinks, skip_layers}. Without names it is the
// server's format that the other fields are about.
void parse_format(Fields& f, const KvRules& rules, bool allow_lossy, KvPolicy& policy) {
  constexpr std::string_view kUnsupported = "kv_format_unsupported";
  const Json* given = f.find("format");
  if (given == nullptr || *given == "auto") return;
  std::string keys = rules.kv_format.substr(0, rules.kv_format.find(' ')), values = keys;
  std::optional<Fields> object;
  if (given->is_string()) {
    keys = values = given->get<std::string>();
  } else if (given->is_object()) {
    object = f.object("format");
    const auto k = object->text("k", 64), v = object->text("v", 64);
    if (k && *k != "auto") keys = *k;
    if (v && *v != "auto") values = *v;
    if (k && !v) values = keys;
    if (v && !k) keys = values;
  } else {
    return f.refuse("format", "must be a name or an object", std::string(kUnsupported));
  }
  if (keys == "planned" && values == keys && !object) {
    if (!rules.plan)
      return f.refuse("format", "this model has no plan; `quire probe` makes one",
                      std::string(kUnsupported));
    if (!allow_lossy)
      return f.refuse("format", "a plan may change the answer; set kv.allow_lossy to allow that",
                      "lossy_not_allowed");
    policy.storage = std::make_shared<StoragePolicy>(*rules.plan);
    return;
  }
  const Result<const Format*> format =
      keys == values ? find_format(keys) : find_format(keys, values);
  if (!format.ok()) return f.refuse("format", format.error().message, std::string(kUnsupported));
  auto storage = std::make_shared<StoragePolicy>(format.value());
  if (object) {
    storage->recent_exact =
        static_cast<std::uint32_t>(object->integer("recent_exact", 0, 1 << 20).value_or(0));
    storage->sinks = static_cast<std::uint32_t>(object->integer("sinks", 0, 1 << 20).value_or(0));
    if (const auto group = object->integer("group", 1, 1024))
      for (const Codec* c : {format.value()->keys, format.value()->values})
        if (*group != c->group)
          object->refuse("group",
                         fmt::format("{} has {}", c->name,
                                     c->group ? fmt::format("groups of {} only", c->group)
                                              : std::string("no groups")),
                         std::string(kUnsupported));
    if (const Json* skip = object->find("skip_layers")) {
      const bool numbers =
          skip->is_array() && skip->size() <= 4096 &&
          std::ranges::all_of(*skip, [](const Json& l) { return l.is_number_integer() && l >= 0; });
      if (!numbers) return object->refuse("skip_layers", "must be a list of layer numbers");
      for (const Json& l : *skip)
        storage->skip_layers.push_back(static_cast<std::uint32_t>(
            std::min<std::uint64_t>(l.get<std::uint64_t>(), 0xffffffffu)));
      std::ranges::sort(storage->skip_layers);
      const auto same = std::ranges::unique(storage->skip_layers);
      storage->skip_layers.erase(same.begin(), same.end());
    }
    object->refuse_unknown();
    if (object->failed()) return;
  }
  if (storage->name() == rules.kv_format) return;
  if (storage->bits_min() < 8 && !allow_lossy)
    return f.refuse("format",
                    fmt::format("{} has fewer than 8 bits and may change the answer; set "
                                "kv.allow_lossy to allow that",
                                storage->name()),
                    "lossy_not_allowed");
  if (rules.check_storage)
    if (const Status ok = rules.check_storage(*storage); !ok.ok())
      return f.refuse("format", ok.error().message, std::string(kUnsupported));
  policy.storage = std::move(storage);
}

std::optional<std::uint32_t> count_of(Fields& f, std::string_view name, std::int64_t min) {
  const auto number = f.integer(name, min, 1 << 30);
  return number ? std::optional(static_cast<std::uint32_t>(*number)) : std::nullopt;
}

// {size, sink}. Without sinks the model is stored so; with them, tokens leave the sequence.
void parse_window(Fields& f, const KvRules& rules, KvPolicy& policy) {
  auto w = f.object("window");
  if (!w) return;
  const auto size = count_of(*w, "size", 1);
  const std::uint32_t sink = count_of(*w, "sink", 0).value_or(0);
  w->refuse_unknown();
  if (!size) w->refuse("size", "is needed: how many of the last tokens are seen");
  if (w->failed()) return;
  if (sink > 0) {
    auto made = parse_retain_policy(window_policy(*size, sink));
    if (!made.ok()) return f.refuse("window", made.error().message);
    policy.retain = std::make_shared<RetainPolicy>(std::move(made.value()));
    return;
  }
  if (!policy.storage && !rules.storage) return w->refuse("size", "this server stores no windows");
  auto storage = std::make_shared<StoragePolicy>(policy.storage ? *policy.storage : *rules.storage);
  storage->window = *size;
  policy.storage = std::move(storage);
}

// {tokens or ratio, policy, sink, recent, per_head, merge, every, cut}
void parse_budget(Fields& f, KvPolicy& policy) {
  auto b = f.object("budget");
  if (!b) return;
  RetainAsk ask{.policy = b->text("policy", 64).value_or("snapkv"),
                .tokens = count_of(*b, "tokens", 1),
                .ratio = b->number("ratio", 0, 1),
                .sink = count_of(*b, "sink", 0),
                .recent = count_of(*b, "recent", 0),
                .every = count_of(*b, "every", 0),
                .cut = count_of(*b, "cut", 1),
                .per_head = b->boolean("per_head").value_or(false),
                .merge = b->text("merge", 64).value_or("")};
  b->refuse_unknown();
  if (b->failed()) return;
  policy.retain = nullptr;
  if (ask.policy == "none") return;
  auto made = make_retain_policy(ask);
  if (!made.ok()) return f.refuse("budget", made.error().message);
  policy.retain = std::make_shared<RetainPolicy>(std::move(made.value()));
}

// {policy, tokens or ratio} of answers; {policy, threshold} or {policy, columns, diagonals} of
// prompts, which are then stored under another name.
void parse_select(Fields& f, const KvRules& rules, KvPolicy& policy) {
  if (const Json* given = f.find("select"); given == nullptr || *given == false) {
    if (given != nullptr) policy.select = nullptr;
    return;
  }
  auto s = f.object("select");
  if (!s) return;
  SelectAsk ask{.policy = s->text("policy", 64).value_or("quest"),
                .tokens = count_of(*s, "tokens", 1),
                .columns = count_of(*s, "columns", 1),
                .diagonals = count_of(*s, "diagonals", 1),
                .ratio = s->number("ratio", 0, 1),
                .threshold = s->number("threshold", 0, 1)};
  s->refuse_unknown();
  if (s->failed()) return;
  auto made = make_select_policy(ask);
  if (!made.ok()) return f.refuse("select", made.error().message);
  if (made.value().answers()) {
    policy.select = std::make_shared<SelectPolicy>(std::move(made.value()));
    return;
  }
  if (!policy.storage && !rules.storage) return f.refuse("select", "this server stores no such");
  auto storage = std::make_shared<StoragePolicy>(policy.storage ? *policy.storage : *rules.storage);
  storage->prefill = made.value().prefill;
  if (rules.check_select)
    if (const Status ok = rules.check_select(made.value(), storage.get(), policy.retain.get());
        !ok.ok())
      return f.refuse("select", ok.error().message, "kv_format_unsupported");
  policy.storage = std::move(storage);
}

// Lossy ways to keep or read less.
void parse_lossy(Fields& f, const KvRules& rules, bool allow_lossy, KvPolicy& policy) {
  policy.retain = rules.retain;
  policy.select = rules.select;
  for (const char* name : {"window", "budget", "select"})
    if (f.find(name) && *f.find(name) != false && !allow_lossy)
      f.refuse(name, "may change the answer; set kv.allow_lossy to allow that",
               "lossy_not_allowed");
  if (f.find("window") && f.find("budget"))
    return f.refuse("window", "and kv.budget both say which tokens stay; give one of them");
  parse_window(f, rules, policy);
  parse_budget(f, policy);
  if (!f.failed() && policy.retain && rules.check_retain)
    if (const Status ok = rules.check_retain(*policy.retain, policy.storage.get()); !ok.ok())
      f.refuse("budget", ok.error().message, "kv_format_unsupported");
  parse_select(f, rules, policy);
  if (!f.failed() && policy.select && rules.check_select)
    if (const Status ok =
            rules.check_select(*policy.select, policy.storage.get(), policy.retain.get());
        !ok.ok())
      f.refuse("select", ok.error().message, "kv_format_unsupported");
}

void parse_report(Fields& f, KvRequest& kv) {
  const Json* report = f.find("report");
  if (report == nullptr) return;
  if (!report->is_array()) return f.refuse("report", "must be a list");
  for (const Json& what : *report) {
    if (what == "timing")
      kv.report_timing = true;
    else if (what == "blocks")
      kv.report_blocks = true;
    else if (what == "explain")
      kv.report_explain = true;
    else if (what == "seed")
      kv.report_seed = true;
    else if (what != "usage")
      f.refuse("report", "may hold usage, timing, blocks, explain and seed");
  }
}

void parse_session(Fields& f, KvRequest& kv) {
  if (const auto id = f.text("session", kSessionNameMax)) {
    if (const Status fine = check_session_name(*id); !fine.ok())
      f.refuse("session", fine.error().message);
    kv.session = *id;
  }
  if (const auto mode = f.text("session_mode", 32)) {
    if (*mode != "exclusive" && *mode != "fork")
      f.refuse("session_mode", "must be exclusive or fork");
    kv.session_fork = *mode == "fork";
  }
}

// What a session keeps of a request's policy for those that come later.
Json session_words(const Json& kv) {
  Json words = Json::object();
  for (const char* name : {"reuse", "recompute", "write", "salt", "format", "window", "budget",
                           "select", "convert", "tiers", "allow_lossy"})
    if (const auto it = kv.find(name); it != kv.end() && !it->is_null()) words[name] = *it;
  return words;
}

// What the request does not say is as the session has it.
void inherit_session(const KvRules& rules, Json& kv) {
  const auto id = kv.find("session");
  if (id == kv.end() || !id->is_string() || !rules.session_policy) return;
  const auto tenant = kv.find("tenant");
  const std::string whose = rules.admin && tenant != kv.end() && tenant->is_string()
                                ? tenant->get<std::string>()
                                : rules.tenant;
  const auto text = rules.session_policy(whose, id->get<std::string>());
  if (!text) return;
  const auto words = parse_json(*text, {.depth_max = 16});
  if (!words.ok() || !words.value().is_object()) return;
  const bool stays = kv.contains("window") || kv.contains("budget"), reuses = kv.contains("reuse");
  for (const auto& [name, value] : words.value().items()) {
    const bool replaced =
        (stays && (name == "window" || name == "budget")) || (reuses && name == "recompute");
    if (!replaced && !kv.contains(name)) kv[name] = value;
  }
}

void parse_fields(Fields& f, const KvRules& rules, KvRequest& kv) {
  kv.given = true;
  if (const auto priority = f.integer("priority", -100, 100))
    kv.priority = static_cast<std::int32_t>(*priority);
  kv.policy.priority = block_priority(kv.priority);
  parse_reuse(f, kv.policy);
  if (const auto salt = f.text("salt", 4096)) {
    check_salt(f, "salt", *salt);
    kv.policy.salt = *salt;
  }
  if (const auto tenant = f.text("tenant", 128)) {
    if (!rules.admin && *tenant != rules.tenant)
      f.refuse(forbidden("kv.tenant: this key belongs to another tenant"));
    kv.policy.tenant = *tenant;
  }
  parse_session(f, kv);
  kv.adapter = f.text("adapter", 256).value_or("");
  if (const Json* tiers = f.find("tiers")) {
    if (!tiers->is_array() || std::ranges::find(*tiers, Json("cpu")) == tiers->end())
      f.refuse("tiers", "must be a list with \"cpu\", where blocks are computed",
               "tier_unavailable");
    else
      for (const auto& [name, allowed] :
           {std::pair{"disk", &kv.policy.disk}, std::pair{"remote", &kv.policy.remote}})
        *allowed = std::ranges::find(*tiers, Json(name)) != tiers->end();
  }
  if (const auto resident = f.size("resident")) {
    if (*resident == 0) f.refuse("resident", "must be more than 0 bytes");
    kv.policy.resident = *resident;
  }
  const bool allow_lossy = f.boolean("allow_lossy").value_or(false);
  if (kv.policy.blend && !allow_lossy)
    f.refuse("reuse", "approximate may change the answer; set kv.allow_lossy to allow that",
             "lossy_not_allowed");
  parse_format(f, rules, allow_lossy, kv.policy);
  parse_lossy(f, rules, allow_lossy, kv.policy);
  kv.policy.convert = f.boolean("convert").value_or(false);
  if (kv.policy.convert &&
      (kv.policy.retain ||
       (kv.policy.storage && kv.policy.storage->prefill.way != SparsePrefill::Way::none)))
    f.refuse("convert",
             "does not go with kv.budget, kv.window or a sparse prompt; give one of them");
  parse_retention(f, kv);
  parse_report(f, kv);
  f.refuse_unknown();
}

// [{"id": 0, "scale": 1.0}]
void parse_lora(Fields& body, KvRequest& kv) {
  const Json* const list = body.find("lora");
  if (list == nullptr) return;
  if (!list->is_array() || list->size() > AdapterSet::kPartsMax)
    return body.refuse("lora",
                       fmt::format("must be a list of at most {} adapters", AdapterSet::kPartsMax));
  kv.lora.emplace();
  for (const Json& one : *list) {
    if (!one.is_object()) return body.refuse("lora", "must be a list of objects with id and scale");
    Fields part(one, "lora");
    const auto id = part.integer("id", 0, 0xffffffffll);
    const auto scale = part.number("scale", -1e6, 1e6);
    if (!id) part.refuse("id", "is required: GET /lora-adapters lists them");
    if (part.failed()) return body.refuse(part.error());
    kv.lora->push_back({static_cast<std::uint32_t>(*id), static_cast<float>(scale.value_or(1))});
  }
}

}  // namespace

void check_salt(Fields& fields, std::string_view name, const std::string& salt) {
  if (salt.empty() || salt.size() > 128 || salt.find_first_of("@/\\") != salt.npos ||
      salt.find('\0') != salt.npos)
    fields.refuse(name, "must be 1 to 128 characters without @, /, \\ and NUL");
}

void parse_kv(Fields& body, std::string_view header, const KvRules& rules, KvRequest& kv) {
  kv.policy.tenant = rules.tenant;
  kv.policy.retain = rules.retain;
  kv.policy.select = rules.select;
  parse_lora(body, kv);
  Json merged = nullptr;
  if (!header.empty()) {
    auto parsed = parse_json(header, {.depth_max = 16});
    if (!parsed.ok() || !parsed.value().is_object())
      return body.refuse(bad_value("x-kv-policy", "must be a JSON object"));
    merged = std::move(parsed.value());
  }
  if (const Json* given = body.find("kv")) {
    if (!given->is_object()) return body.refuse("kv", "must be an object");
    if (merged.is_null())
      merged = *given;
    else
      merged.update(*given);
  }
  if (merged.is_null()) return;
  inherit_session(rules, merged);
  kv.session_words = session_words(merged).dump(-1, ' ', false, Json::error_handler_t::replace);
  Fields fields(merged, "kv");
  parse_fields(fields, rules, kv);
  if (fields.failed()) body.refuse(fields.error());
}

}  // namespace quire
