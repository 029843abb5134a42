// The operations view: the flow with its figures, each batch by its steps, and what holds the watermark back.

import { get, Refreshed } from "./api.js";
import { behind, Chart, legend, stacks } from "./chart.js";
import { el, mark, say, table, wide } from "./dom.js";
import { firstRun } from "./first_run.js";
import { Flow } from "./flow.js";
import { FRESH_MS_MAX, stamp } from "./freshness.js";
import { followOverview } from "./overview.js";
import { Pace } from "./pace.js";
import { holder } from "./standing.js";
import { everyTick, now } from "./ticker.js";
import { ago, bytes, capital, clock, count, instant, plural, sentence, short, shortInstant, span } from "./words.js";

const BATCHES_DRAWN = 90;
const SERIES = [8, 0, 1, 2, 3, 4, 5, 6, 7]; // waiting has the most muted one
const STEPS = ["waiting", "reading", "decoding", "deduping", "tallying", "staging", "planning", "overhead", "committing"];
const STEP_NAMES = ["waiting in the log", "reading", "decoding", "deduping", "tallying", "staging", "planning by Spark (the one before)", "Spark around the tasks", "committing (the one before)"];

/** The view, live; it goes on with the last known numbers. */
export function operationsView({ session, signal }) {
  const pace = new Pace(), flow = new Flow(signal);
  const figures = el("div"), sparkUi = el("p", { class: "quiet" }), partitions = el("div"), replicas = el("div"), sink = el("section", { class: "card" }), alarm = el("div", { role: "alert" });
  const charts = batchCharts(signal), delays = el("div", { class: "delays" });
  const batchCard = el("section", { class: "card" }, el("h2", {}, "Batches"), sparkUi, charts.node, delays);
  const partitionCard = el("section", { class: "card" }, el("h2", {}, "What holds the watermark back"), partitions);
  const empty = firstRun(session, [batchCard, partitionCard]);
  let state = null, beat = null;

  const batches = new Refreshed(async () => {
    const answer = await get(`/v1/batches?limit=${BATCHES_DRAWN}`, signal);
    pace.seed(answer.items, state?.events ?? 0);
    charts.show(answer.items);
  }, { pauseMs: 1000, signal });
  const show = (message) => {
    if (message.position !== state?.position) batches.wanted();
    state = message;
    empty.show(message.position);
    pace.see(message.events);
    pulse(message);
    drawPartitions(message);
  };
  const pulse = (message) => {
    beat = { pipeline: message.pipeline, replicas: message.replicas ?? [], sink: message.sink ?? null, trouble: message.trouble, diagnosis: message.diagnosis ?? null, position: message.position, heard: now() };
    draw();
  };
  const drawPartitions = ({ periods }) => {
    const known = periods.at(-1)?.partitions ?? [], holds = holder(known);
    const rows = known.map((each) => [each.partition,
      each.idle ? "silent: holds nothing back" : each === holds ? el("strong", { class: "holds" }, "holds the watermark back") : "ahead",
      instant(each.latest), instant(each.complete_upto), instant(each.arrived)]);
    partitions.replaceChildren(rows.length
      ? wide("Partitions of the log", table("Partitions of the log", [{ title: "Partition" }, { title: "Watermark" }, { title: "Newest event" }, { title: "Complete up to" }, { title: "Last arrival" }], rows, { unseenCaption: true }))
      : el("p", { class: "quiet" }, "Nothing was read from the log yet."));
  };
  const freshness = followOverview({ show, pulse, signal });

  const draw = () => {
    const parts = describe(state, beat, freshness, pace);
    flow.show(parts);
    drawFigures(figures, parts);
    drawReplicas(replicas, beat);
    drawDelays(delays, beat, parts.some((part) => part.name === "Pipeline" && part.state === "down"));
    drawSparkUi(sparkUi, beat);
    const delivery = sinkOf(beat, freshness);
    drawSink(sink, delivery, beat);
    const down = parts.filter((part) => part.state === "down").map((part) => `${part.name}: ${part.why}.`);
    if (down.length) down.push("The numbers are the last known ones.");
    down.push(...parts.filter((part) => part.told).map((part) => `${part.name}: ${part.told}.`));
    if (delivery?.state === "down") down.push(`${delivery.name}: ${delivery.why}.`);
    const text = down.join(" ");
    const place = alarm.firstChild;
    if (text && !place) alarm.append(el("p", { class: "alarm" }, text));
    else if (text) say(place, text);
    else place?.remove();
  };
  draw();
  everyTick(draw, signal);

  return el("div", { class: "view" },
    el("div", { class: "view-top" }, el("h1", { tabindex: "-1" }, "Operations"), stamp(freshness, signal, "Operations")),
    alarm,
    el("section", { class: "card" }, el("h2", {}, "The flow"), flow.node, figures),
    empty.node, batchCard, partitionCard,
    el("section", { class: "card" }, el("h2", {}, "Replicas"), replicas), sink);
}

/** What each part of the flow says of itself at this moment. */
function describe(state, beat, freshness, pace) {
  const silence = beat?.heard.elapsed() ?? 0, reached = freshness.reached;
  const pipeline = beat?.pipeline ?? null, batch = state?.batch ?? null;
  const age = pipeline === null ? null : pipeline.age_ms + silence;
  const alive = age !== null && age <= FRESH_MS_MAX;
  const behindBy = pipeline === null ? 0 : Math.max(0, pipeline.position - beat.position);
  const unknown = beat === null;
  const known = state?.periods.at(-1)?.partitions ?? [];
  const up = (works) => (unknown ? "unknown" : !reached ? "unknown" : works ? "up" : "down");

  const pipelineState = unknown || !reached ? "unknown" : !alive ? "down" : pipeline.streaming && !pipeline.trouble ? "up" : "busy";
  const replicaState = unknown || !reached ? "unknown" : beat.trouble ? "down" : behindBy > 2 ? "busy" : "up";
  const youState = unknown && freshness.link === "connecting" ? "unknown" : reached ? "up" : "down";
  const ageOfAnswer = freshness.age();
  const unread = pipeline?.unread_segments ?? 0;
  const trouble = alive ? pipeline.trouble ?? null : null;
  const heldBack = pipeline?.held_back ? trouble : null;
  return [
    {
      name: "Log", link: "up", state: up(true) === "up" && unread > 0 && !alive ? "busy" : up(!heldBack),
      word: unknown || !reached ? "last known" : heldBack ? "held back" : unread ? "backlog" : "read",
      why: heldBack ?? "",
      lines: [["unread", pipeline ? plural(unread, "segment") : "–"], ["partitions", count(known.length)], ["read in all", bytes(state?.input_bytes ?? 0)]],
    },
    {
      name: "Pipeline", link: pipelineState, state: pipelineState,
      word: { unknown: "last known", up: "running", busy: pipeline?.streaming ? "waiting" : "starting", down: pipeline ? "down" : "never ran" }[pipelineState],
      why: pipeline ? "it gives no sign of life" : "it never ran here",
      told: heldBack ? "" : trouble ?? "",
      lines: [["last batch", batch ? span(tookOf(batch)) : "–"], ["events/s", short(Math.round(pace.rate))], ["sign of life", age === null ? "never" : ago(age)]],
    },
    {
      name: "Ledger", link: pipelineState, state: up(true), word: unknown || !reached ? "last known" : "readable",
      lines: [["position", pipeline ? count(Math.max(pipeline.position, beat.position)) : count(state?.position ?? 0)], ["watermark", state?.watermark ? shortInstant(state.watermark) : "none"], ["invoices upto", state ? count(Math.max(state.invoices_position, pipeline?.invoices_position ?? 0)) : "–"]],
    },
    {
      name: "Replica", link: replicaState, state: replicaState,
      word: { unknown: "last known", up: "following", busy: "behind", down: "stopped" }[replicaState],
      why: beat?.trouble ? `it does not go on: ${beat.trouble}` : "",
      lines: [["position", count(beat?.position ?? state?.position ?? 0)], ["lag", plural(behindBy, "batch", "batches")], ["alive", aliveOf(beat)]],
    },
    {
      name: "You", link: youState, state: youState,
      word: { unknown: "connecting", up: freshness.link === "polling" ? "asking" : "connected", down: "cut off" }[youState],
      why: "the server is not reached",
      lines: [["staleness", ageOfAnswer === null ? "unknown" : span(ageOfAnswer)], ["by", { stream: "stream", polling: "polling", lost: "nothing", connecting: "…" }[freshness.link]], ["as of", ageOfAnswer === null ? "–" : clock(Date.now() - ageOfAnswer)]],
    },
  ];
}

/** Where Spark shows its own jobs, stages and queries. */
function drawSparkUi(place, beat) {
  const url = beat?.pipeline?.spark_ui ?? "";
  place.hidden = !url;
  if (place.dataset.shown === url) return;
  mark(place, "data-shown", url);
  place.replaceChildren(...(url ? ["Jobs, stages and the streaming query: ", el("a", { href: url, rel: "noreferrer" }, "Spark's own UI"), ", on the pipeline's machine."] : []));
}

/** The same figures as a table: what the drawing says to those who do not see it. */
function drawFigures(place, parts) {
  const rows = parts.map((part) => [part.name, el("span", { class: `word ${part.state}` }, part.word), part.lines.map(([label, value]) => `${label}: ${value}`).join(" · ")]);
  const text = JSON.stringify(parts.map((part) => [part.name, part.word, part.lines]));
  if (place.dataset.shown === text) return;
  mark(place, "data-shown", text);
  if (!place.firstChild) {
    place.append(behind("In numbers", table("The flow", [{ title: "Part" }, { title: "State" }, { title: "Figures" }], rows, { unseenCaption: true })));
    return;
  }
  // The summary stays, so that it keeps the focus.
  place.querySelector("table").replaceWith(table("The flow", [{ title: "Part" }, { title: "State" }, { title: "Figures" }], rows, { unseenCaption: true }));
}

/** How many of the replicas that are known give a sign of life. */
function aliveOf(beat) {
  const all = beat?.replicas ?? [], silence = beat?.heard.elapsed() ?? 0;
  return all.length ? `${count(all.filter((each) => each.age_ms + silence <= FRESH_MS_MAX).length)} of ${count(all.length)}` : "–";
}

/** All replicas of the ledger, and how far each is. */
function drawReplicas(place, beat) {
  const all = beat?.replicas ?? [], silence = beat?.heard.elapsed() ?? 0, last = beat?.pipeline?.position ?? 0;
  const rows = all.map((each) => {
    const age = each.age_ms + silence, alive = age <= FRESH_MS_MAX;
    return [each.name, el("span", { class: `word ${alive ? "up" : "down"}` }, alive ? "following" : "silent"), count(each.position), plural(Math.max(0, last - each.position), "batch", "batches"), ago(age)];
  });
  const text = JSON.stringify(rows.map((row) => row.map((cell) => cell.textContent ?? cell)));
  if (place.dataset.shown === text) return;
  mark(place, "data-shown", text);
  const columns = [{ title: "Replica" }, { title: "State" }, { title: "Position", number: true }, { title: "Lag", number: true }, { title: "Sign of life" }];
  place.replaceChildren(rows.length ? wide("Replicas", table("Replicas", columns, rows, { unseenCaption: true })) : el("p", { class: "quiet" }, "No replica has spoken yet."));
}

/** The invoice sink as a part of the whole; null where invoices are not delivered over HTTP. */
function sinkOf(beat, freshness) {
  const sink = beat?.sink ?? null;
  if (sink === null) return null;
  const alive = sink.age_ms !== null && sink.age_ms + beat.heard.elapsed() <= FRESH_MS_MAX;
  const well = alive && !sink.gone && !sink.stuck;
  const why = sink.age_ms === null ? "opentab deliver never ran here" : !alive ? "opentab deliver gives no sign of life" : sink.gone ? `the receiver takes nothing: ${sink.error}` : `the receiver refuses ${plural(sink.stuck, "invoice")}: ${sink.error}`;
  const word = !alive ? "silent" : sink.gone ? "receiver gone" : sink.stuck ? "stuck" : sink.waiting ? "delivering" : "delivered";
  return { name: "Invoice sink", state: !freshness.reached ? "unknown" : well ? "up" : "down", word, why };
}

/** What waits to be delivered over HTTP, and why. */
function drawSink(place, part, beat) {
  place.hidden = part === null;
  if (part === null) return;
  const sink = beat.sink, silence = beat.heard.elapsed(), since = (age) => (age === null ? "–" : ago(age + silence));
  const row = [el("span", { class: `word ${part.state}` }, part.word), count(sink.waiting), count(sink.stuck), since(sink.oldest_ms), count(sink.delivered), since(sink.delivered_ms), sink.error ?? "–"];
  const text = JSON.stringify(row.map((cell) => cell.textContent ?? cell));
  if (place.dataset.shown === text) return;
  mark(place, "data-shown", text);
  const columns = [{ title: "State" }, { title: "Waiting", number: true }, { title: "Refused", number: true }, { title: "Oldest" }, { title: "Delivered", number: true }, { title: "Last success" }, { title: "Last error" }];
  place.replaceChildren(el("h2", {}, "Invoices over HTTP"), wide("Invoices over HTTP", table("Invoices over HTTP", columns, [row], { unseenCaption: true })));
}

/** Why batches are slow or late: each cause with its figure and the setting that helps, or that nothing is. */
function drawDelays(place, beat, isDown) {
  const found = beat?.diagnosis ?? null;
  place.hidden = found === null;
  const text = JSON.stringify([found, isDown]);
  if (found === null || place.dataset.shown === text) return;
  mark(place, "data-shown", text);
  const summary = sentence(found.sentence), causes = found.causes.map(({ name, fact, fix, setting }) =>
    el("li", {}, el("strong", {}, `${capital(name)}: `), sentence(fact), " ", ...withCode(sentence(fix), setting)));
  place.replaceChildren(
    el("h3", {}, "Why batches are slow or late"),
    el("p", { class: found.is_late ? "late" : "quiet" }, isDown ? `When the pipeline last ran: ${found.sentence}.` : summary),
    ...(causes.length ? [el("ul", { class: "causes" }, ...causes)] : []));
}

/** A text with the name of a setting in it as code. */
function withCode(text, setting) {
  const at = setting ? text.indexOf(setting) : -1;
  return at < 0 ? [text] : [text.slice(0, at), el("code", {}, setting), text.slice(at + setting.length)];
}

function tookOf(batch) {
  return Date.parse(batch.committed_at) - Date.parse(batch.started_at);
}

/** Durations by step, events and bytes of the last batches, one above the other. */
function batchCharts(signal) {
  const time = new Chart({ height: 200, signal }), events = new Chart({ height: 110, signal }), size = new Chart({ height: 110, signal });
  const empty = el("p", { class: "quiet" }, "No batch yet."), numbers = el("div");
  const all = el("div", { class: "chart-stack" },
    el("h3", {}, "Time by step"), time.node, legend(STEP_NAMES, SERIES),
    el("h3", {}, "Events"), events.node, el("h3", {}, "Bytes read"), size.node, numbers);
  all.hidden = true;

  const show = (batches) => {
    empty.hidden = batches.length > 0;
    all.hidden = !batches.length;
    if (!batches.length) return;
    const every = Math.max(1, Math.ceil(batches.length / 6)), last = batches.at(-1);
    const column = (batch, title, parts) => ({ label: count(batch.batch), title: `Batch ${count(batch.batch)}, ${instant(batch.committed_at)}: ${title}`, parts });
    const steps = batches.map((batch) => {
      const parts = partsOf(batch);
      return column(batch, STEPS.map((step, n) => `${STEP_NAMES[n]} ${span(parts[step])}`).join(", "), STEPS.map((step, n) => ({ value: parts[step], series: SERIES[n] })));
    });
    time.show(`Time by step of the last ${plural(batches.length, "batch", "batches")}. ${steps.at(-1).title}.`, stacks({ columns: steps, axis: span, every, gap: 0.25 }));
    events.show(`Events of each batch; the last one has ${count(last.events)}.`, stacks({ columns: batches.map((batch) => column(batch, plural(batch.events, "event"), [{ value: batch.events, series: 0 }])), axis: short, every, gap: 0.25 }));
    size.show(`Bytes of each batch; the last one has ${bytes(last.input_bytes)}.`, stacks({ columns: batches.map((batch) => column(batch, bytes(batch.input_bytes), [{ value: batch.input_bytes, series: 0 }])), axis: bytes, every, gap: 0.25, base: 2 }));
    const rows = batches.toReversed().slice(0, 20).map((batch) => [count(batch.batch), instant(batch.committed_at), span(batch.steps_ms.waiting ?? 0), span(tookOf(batch)), count(batch.events), count(batch.late_events), count(batch.rejections), bytes(batch.input_bytes), count(batch.files)]);
    const columns = ["Batch", "Committed", "Waited", "Took", "Events", "Late", "Rejected", "Bytes", "Files"].map((title, n) => ({ title, number: n !== 1 }));
    const made = wide("The last batches", table("The last batches", columns, rows, { unseenCaption: true }));
    const shown = numbers.querySelector(".wide");
    if (shown) {
      made.scrollLeft = shown.scrollLeft;
      shown.replaceChildren(...made.childNodes);
    } else numbers.append(behind("In numbers", made));
  };
  return { node: el("div", {}, empty, all), show };
}

/** Milliseconds by step; what the tasks took besides is Spark's own. */
function partsOf(batch) {
  const steps = batch.steps_ms, parts = Object.fromEntries(STEPS.map((step) => [step, steps[step] ?? 0]));
  const busy = parts.reading + parts.decoding + parts.deduping + parts.tallying + parts.staging;
  parts.overhead = Math.max(0, (steps.tasks ?? busy) - busy);
  return parts;
}
