"use strict";
(() => {
  const tip = document.getElementById("tip");
  const show = (text, x, y) => {
    tip.textContent = text;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const right = x + 14 + box.width > innerWidth;
    tip.style.left = `${Math.max(4, right ? x - 14 - box.width : x + 14)}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 14, innerHeight - box.height - 4))}px`;
  };
  const hide = () => { tip.hidden = true; };

  // A title within the picture would be told late, by the browser, and beside ours.
  for (const svg of document.querySelectorAll(".chart svg")) {
    const title = svg.querySelector(":scope > title");
    svg.setAttribute("aria-label", title.textContent);
    svg.setAttribute("aria-describedby", svg.querySelector(":scope > desc").id);
    svg.removeAttribute("aria-labelledby");
    title.remove();
  }

  // What a shape stands for is told at once, and by touch.
  for (const shape of document.querySelectorAll(".bars svg > :has(> title)")) {
    const title = shape.querySelector("title");
    const text = title.textContent;
    title.remove();
    shape.addEventListener("pointermove", (event) => show(text, event.clientX, event.clientY));
    shape.addEventListener("pointerleave", hide);
  }

  for (const chart of document.querySelectorAll(".lines")) {
    const area = chart.querySelector(".area");
    const cursor = chart.querySelector(".cursor");
    const table = document.getElementById(chart.dataset.values);
    const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const rows = [...table.tBodies[0].rows];
    const places = chart.dataset.places.split(",").map(Number);
    let at = -1;
    const tell = (place, y) => {
      at = place;
      const box = area.getBoundingClientRect();
      const cells = [...rows[place].cells].map((cell) => cell.textContent);
      cursor.style.left = `${100 * places[place]}%`;
      cursor.style.display = "block";
      const lines = cells.map((text, column) => [heads[column], text]).filter(([, text]) => text !== "-");
      show(lines.map((line) => line.join(" ")).join("\n"), box.left + box.width * places[place], y ?? box.top);
    };
    const leave = () => { cursor.style.display = "none"; hide(); };
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect();
      const share = (event.clientX - box.left) / box.width;
      let nearest = 0;
      places.forEach((place, index) => {
        if (Math.abs(place - share) < Math.abs(places[nearest] - share)) nearest = index;
      });
      tell(nearest, event.clientY);
    });
    area.addEventListener("pointerleave", leave);
    chart.addEventListener("blur", leave);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") leave();
      if (step === undefined) return;
      event.preventDefault();
      tell(Math.max(0, Math.min(rows.length - 1, at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step)));
    });
  }
})();
