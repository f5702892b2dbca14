
"use strict";
// Values under the pointer. A plot's data: its edges in pixels and in values, and [name, colour, points] of each line.
for (const figure of document.querySelectorAll("figure.plot")) {
  const svg = figure.querySelector("svg");
  const [[left, right, top, bottom, x0, x1, y0, y1], lines] = JSON.parse(figure.dataset.plot);
  const width = svg.viewBox.baseVal.width;
  const height = svg.viewBox.baseVal.height;
  const steps = [...new Set(lines.flatMap((line) => line[2].map((point) => point[0])))].sort((a, b) => a - b);
  if (steps.length === 0) continue;
  const atX = (x) => left + ((x - x0) / (x1 - x0)) * (right - left);
  const atY = (y) => bottom - Math.min(1, Math.max(0, (y - y0) / (y1 - y0))) * (bottom - top);
  const draw = (name, className) => {
    const element = document.createElementNS(svg.namespaceURI, name);
    element.setAttribute("class", className);
    return svg.appendChild(element);
  };
  const tip = figure.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  const text = (value) => (value === null ? "NaN or infinite" : String(value));
  let cursor = null;
  let dots = [];
  let shown = -1;

  const hide = () => {
    cursor?.remove();
    dots.forEach((dot) => dot.remove());
    [cursor, dots, shown, tip.hidden] = [null, [], -1, true];
  };
  const show = (index) => {
    if (index === shown) return;
    hide();
    shown = index;
    const step = steps[index];
    cursor = draw("path", "cursor");
    cursor.setAttribute("d", `M${atX(step)} ${top}V${bottom}`);
    const rows = [`step ${step}`];
    for (const [name, colour, points] of lines) {
      const point = points.find((each) => each[0] === step);
      if (!point) continue;
      const interval = point.length > 2 ? ` [${text(point[2])}, ${text(point[3])}]` : "";
      rows.push((name ? `${name}: ` : "") + text(point[1]) + interval);
      if (point[1] === null) continue;
      const dot = draw("circle", `f${colour}`);
      dot.setAttribute("r", "4");
      dot.setAttribute("cx", atX(step));
      dot.setAttribute("cy", atY(point[1]));
      dots.push(dot);
    }
    tip.replaceChildren(...rows.map((row) => {
      const line = document.createElement("div");
      line.textContent = row;
      return line;
    }));
    tip.hidden = false;
    const scale = svg.clientWidth / width;
    const room = figure.clientWidth - tip.offsetWidth;
    const beside = atX(step) * scale;
    tip.style.left = `${Math.max(0, Math.min(room, beside > figure.clientWidth / 2 ? beside - tip.offsetWidth - 10 : beside + 10))}px`;
    // Below the plot, where it hides no line.
    tip.style.top = `${((bottom + 6) / height) * svg.clientHeight}px`;
  };
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const pixel = ((event.clientX - box.left) / box.width) * width;
    const value = x0 + ((pixel - left) / (right - left)) * (x1 - x0);
    const above = steps.findIndex((step) => step >= value);
    if (above <= 0) return above === 0 ? 0 : steps.length - 1;
    return value - steps[above - 1] < steps[above] - value ? above - 1 : above;
  };
  svg.addEventListener("pointermove", (event) => show(nearest(event)));
  svg.addEventListener("pointerdown", (event) => show(nearest(event)));
  svg.addEventListener("pointerleave", hide);
  // The same for a keyboard.
  svg.setAttribute("tabindex", "0");
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(steps.length - 1, (shown < 0 ? (move > 0 ? -1 : steps.length) : shown) + move)));
  });

  // An exponential moving average over steps, freed of its bias towards the start. A line with intervals says itself how sure it is.
  let smooth = [];
  figure.smooth = (weight) => {
    smooth.forEach((path) => path.remove());
    smooth = [];
    const noisy = lines.filter((line) => line[2].every((point) => point.length === 2));
    svg.classList.toggle("smoothed", weight > 0 && noisy.length > 0);
    if (weight === 0) return;
    for (const [, colour, points] of noisy) {
      let [mean, count, path] = [0, 0, ""];
      for (const [step, value] of points) {
        if (value === null) continue;
        mean = weight * mean + (1 - weight) * value;
        count += 1;
        path += `${path ? "L" : "M"}${atX(step).toFixed(1)} ${atY(mean / (1 - weight ** count)).toFixed(1)}`;
      }
      const element = draw("path", `line smooth c${colour}`);
      element.setAttribute("d", path);
      smooth.push(element);
    }
  };
  const wider = figure.appendChild(document.createElement("button"));
  wider.type = "button";
  wider.className = "wider";
  wider.textContent = "enlarge";
  const title = svg.getAttribute("aria-label").split(/[:,]/)[0];
  wider.setAttribute("aria-label", `enlarge ${title}`);
  wider.addEventListener("click", () => {
    const large = figure.classList.toggle("large");
    wider.textContent = large ? "reduce" : "enlarge";
    wider.setAttribute("aria-label", `${wider.textContent} ${title}`);
    hide();
  });
}

// One slider for all curves.
const heading = document.querySelector("#curves h2");
if (heading && document.querySelector("figure.plot")) {
  const label = document.createElement("label");
  label.className = "smoothing";
  label.append("Smoothing ");
  const slider = label.appendChild(document.createElement("input"));
  Object.assign(slider, { type: "range", min: "0", max: "0.98", step: "0.02", value: "0" });
  slider.addEventListener("input", () => {
    for (const figure of document.querySelectorAll("figure.plot")) figure.smooth?.(Number(slider.value));
  });
  heading.after(label);
}

// A slider over the pictures of a kind, which takes the place of the last one; and each at full size by a click.
for (const timeline of document.querySelectorAll(".timeline")) {
  const after = timeline.querySelector("figure.after");
  const figures = [...timeline.querySelectorAll("figure.between"), after].filter(Boolean);
  if (!after || figures.length < 2) continue;
  const states = figures.map((figure) => {
    const image = figure.querySelector("img");
    return [figure.querySelector("figcaption").textContent, image.src, image.alt, figure.querySelector("a").getAttribute("href")];
  });
  const label = document.createElement("label");
  label.className = "over-time";
  label.append("Over time ");
  const slider = label.appendChild(document.createElement("input"));
  Object.assign(slider, { type: "range", min: "0", max: String(states.length - 1), step: "1", value: String(states.length - 1) });
  slider.addEventListener("input", () => {
    const [caption, source, alternative, href] = states[Number(slider.value)];
    after.querySelector("figcaption").textContent = caption;
    Object.assign(after.querySelector("img"), { src: source, alt: alternative });
    after.querySelector("a").setAttribute("href", href);
  });
  timeline.querySelector(".pair").after(label);
}
for (const link of document.querySelectorAll(".timeline figure a")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const small = link.querySelector("img");
    const dialog = document.body.appendChild(document.createElement("dialog"));
    const image = dialog.appendChild(document.createElement("img"));
    Object.assign(image, { src: small.src, alt: small.alt });
    // Whole pixels stay sharp.
    const times = Math.max(1, Math.floor(Math.min((innerWidth * 0.96) / small.naturalWidth, 3)));
    image.width = small.naturalWidth * times;
    const close = dialog.appendChild(document.createElement("button"));
    close.type = "button";
    close.textContent = "close";
    dialog.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    dialog.showModal();
  });
}
